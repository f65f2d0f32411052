/* How all extension modules are made: in the main interpreter, whose memory, threads and types they share. */
#ifndef CXLEMU_INTERPRETER_H
#define CXLEMU_INTERPRETER_H

#include <Python.h>

/* Make a module; NULL with an ImportError in a subinterpreter. A Python without the GIL takes it up again. */
static inline PyObject *make_module(PyModuleDef *definition) {
    if (PyInterpreterState_Get() != PyInterpreterState_Main()) {
        PyErr_Format(PyExc_ImportError,
                     "%s works in the main interpreter only, not in a subinterpreter: start a process",
                     definition->m_name);
        return NULL;
    }
    PyObject *module = PyModule_Create(definition);
#ifdef Py_GIL_DISABLED
    if (module != NULL && PyUnstable_Module_SetGIL(module, Py_MOD_GIL_USED) < 0) Py_CLEAR(module);
#endif
    return module;
}

#endif
