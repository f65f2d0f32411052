/* Layouts that come from Python, as the bytes of `layout_record` in plan/layout.py. */
#ifndef CXLEMU_LAYOUT_MODULE_H
#define CXLEMU_LAYOUT_MODULE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <string.h>

#include "layout.h"

/* Copy a layout from an object that has just its bytes. Return 0, or -1 with an exception. Values are not checked
 * here. */
static inline int layout_take(PyObject *object, layout *taken) {
    Py_buffer view;
    if (PyObject_GetBuffer(object, &view, PyBUF_SIMPLE) < 0) return -1;
    const int right = view.len == sizeof *taken;
    if (right) memcpy(taken, view.buf, sizeof *taken);
    else PyErr_Format(PyExc_ValueError, "a layout has %zu bytes, not %zd", sizeof *taken, view.len);
    PyBuffer_Release(&view);
    return right ? 0 : -1;
}

#endif
