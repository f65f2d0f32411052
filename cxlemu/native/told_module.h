/* Tables of told places that come from Python. */
#ifndef CXLEMU_TOLD_MODULE_H
#define CXLEMU_TOLD_MODULE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "told.h"

/* Let doorbells tell where arrays in the heap lie. told: this rank, a strip's bytes, the places of its input and output, where each
 * rank's strip begins as int64, and each region's berth. Return 0, or -1 with an exception. */
static inline int told_take(PyObject *told, program *p) {
    int own;
    long long strip_bytes, input, output;
    Py_buffer strips, berths;
    if (!PyArg_ParseTuple(told, "iLLLy*y*", &own, &strip_bytes, &input, &output, &strips, &berths)) return -1;
    const int64_t at[TOLD_BUFFERS] = {input, output};
    if (strips.len != p->layout.ranks * (Py_ssize_t)sizeof(int64_t) ||
        berths.len != p->region_count * (Py_ssize_t)sizeof(berth))
        PyErr_SetString(PyExc_ValueError, "places are told of all ranks and all regions");
    else if (!(p->told = told_new(p->layout.ranks, own, strip_bytes, at, strips.buf, berths.buf, p->region_count)))
        PyErr_NoMemory();
    PyBuffer_Release(&strips), PyBuffer_Release(&berths);
    return p->told ? 0 : -1;
}

#endif
