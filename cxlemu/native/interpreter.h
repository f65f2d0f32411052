/* How all extension modules are made: in the main interpreter, whose memory, threads and types they share, and with the GIL. */
#ifndef CXLEMU_INTERPRETER_H
#define CXLEMU_INTERPRETER_H

#include <Python.h>

#include <stdbool.h>

/* Set an exception, and be what functions return then: those that return 0 otherwise, and those that say whether all is
 * well. */
#define RAISED(...) (PyErr_Format(__VA_ARGS__), -1)
#define REFUSE(...) (PyErr_Format(PyExc_ValueError, __VA_ARGS__), false)

/* In a table of methods: a function that takes its arguments as an array. */
#define FAST(function) (PyCFunction)(void (*)(void))(function), METH_FASTCALL

/* Make a module; NULL with an ImportError in a subinterpreter, and without the GIL. A Python that can do without takes the
 * GIL up again before it gets here, unless it was started with -X gil=0. */
static inline PyObject *make_module(PyModuleDef *definition) {
    if (PyInterpreterState_Get() != PyInterpreterState_Main()) {
        PyErr_Format(PyExc_ImportError,
                     "%s works in the main interpreter only, not in a subinterpreter: start a process",
                     definition->m_name);
        return NULL;
    }
    PyObject *asked = PySys_GetObject("_is_gil_enabled"); /* from 3.13 on */
    PyObject *enabled = asked ? PyObject_CallNoArgs(asked) : Py_NewRef(Py_True);
    if (enabled == Py_False)
        PyErr_Format(PyExc_ImportError, "%s needs the GIL: start Python without -X gil=0 and PYTHON_GIL=0",
                     definition->m_name);
    PyObject *module = enabled && enabled != Py_False ? PyModule_Create(definition) : NULL;
    Py_XDECREF(enabled);
#ifdef Py_GIL_DISABLED
    if (module != NULL && PyUnstable_Module_SetGIL(module, Py_MOD_GIL_USED) < 0) Py_CLEAR(module);
#endif
    return module;
}

#endif
