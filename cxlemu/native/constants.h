/* Numbers that C and Python both know. A module exports those it was compiled with as its dict CONSTANTS; Python takes them
 * from there, or compares them with its own when it is imported (cxlemu/compiled.py). */
#ifndef CXLEMU_CONSTANTS_H
#define CXLEMU_CONSTANTS_H

#include <Python.h>

typedef struct {
    const char *name;
    long long value;
} constant;

#define CONSTANT(name) {#name, name}

/* Add CONSTANTS to a module. Return 0, or -1 with an exception. */
static inline int add_constants(PyObject *module, const constant *constants, size_t count) {
    PyObject *all = PyDict_New();
    for (size_t k = 0; all && k < count; k++) {
        PyObject *value = PyLong_FromLongLong(constants[k].value);
        if (!value || PyDict_SetItemString(all, constants[k].name, value) < 0) Py_CLEAR(all);
        Py_XDECREF(value);
    }
    const int added = all ? PyModule_AddObjectRef(module, "CONSTANTS", all) : -1;
    Py_XDECREF(all);
    return added;
}

#endif
