/* Arrays on memory that another library's object owns, such as a tensor. That library's own view may take longer than a
 * call, and change the object: a torch.Tensor cannot be resized after numpy(). */
#include "modules.h"

#include <stdbool.h>
#include <stdlib.h>

#define NPY_NO_DEPRECATED_API NPY_2_0_API_VERSION
#include <numpy/arrayobject.h>

/* borrowed(address, count, dtype, owner) -> an array that holds a reference to owner. The caller guarantees that the
 * memory stays there as long as owner does. */
static PyObject *borrowed(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t given) {
    if (given != 4 || !PyArray_DescrCheck(args[2]))
        return PyErr_Format(PyExc_TypeError, "borrowed takes an address, a count, a dtype and the memory's owner");
    void *address = PyLong_AsVoidPtr(args[0]);
    npy_intp count = PyLong_AsSsize_t(args[1]);
    if (PyErr_Occurred()) return NULL;
    if (count < 0 || (count && !address)) return PyErr_Format(PyExc_ValueError, "there is no memory to borrow");
    PyArray_Descr *dtype = (PyArray_Descr *)Py_NewRef(args[2]); /* the new array takes this reference */
    PyObject *array = PyArray_NewFromDescr(&PyArray_Type, dtype, 1, &count, NULL, address,
                                           address ? NPY_ARRAY_CARRAY : 0, NULL);
    if (array && PyArray_SetBaseObject((PyArrayObject *)array, Py_NewRef(args[3])) < 0) Py_CLEAR(array);
    return array;
}

typedef struct {
    uintptr_t begin, end; /* the addresses between which an array's elements lie */
} extent;

/* Return where an array's elements lie; with a period, modulo that. */
static extent extent_of(PyArrayObject *array, uintptr_t period) {
    const uintptr_t at = (uintptr_t)PyArray_DATA(array);
    extent found = {at, at + (uintptr_t)PyArray_ITEMSIZE(array)};
    for (int k = 0; k < PyArray_NDIM(array); k++) {
        const npy_intp stride = PyArray_STRIDE(array, k);
        const uintptr_t step = (uintptr_t)(stride < 0 ? -stride : stride);
        if (period && step % period == 0) continue;
        const uintptr_t reach = (uintptr_t)(PyArray_DIM(array, k) - 1) * step;
        if (stride < 0) found.begin -= reach;
        else found.end += reach;
    }
    if (!PyArray_NBYTES(array)) return (extent){0};
    const uintptr_t shift = period ? found.begin - found.begin % period : 0;
    return (extent){found.begin - shift, found.end - shift};
}

static int by_begin(const void *a, const void *b) {
    const uintptr_t left = ((const extent *)a)->begin, right = ((const extent *)b)->begin;
    return left < right ? -1 : left > right;
}

/* Return whether the arrays of each pair lie apart from those of all others; with a period, modulo that. */
static bool lie_apart(PyObject *pairs, extent *found, uintptr_t period) {
    size_t spans = 0;
    for (Py_ssize_t k = 0; k < PyList_GET_SIZE(pairs); k++) {
        PyObject *pair = PyList_GET_ITEM(pairs, k);
        const extent from = extent_of((PyArrayObject *)PyTuple_GET_ITEM(pair, 0), period);
        const extent to = extent_of((PyArrayObject *)PyTuple_GET_ITEM(pair, 1), period);
        const bool behind = period || from.begin >= to.begin;
        const uintptr_t apart_by = period ? (from.begin + period - to.begin) % period : from.begin - to.begin;
        const bool inside = behind && apart_by + (from.end - from.begin) <= to.end - to.begin;
        if (to.begin < to.end) found[spans++] = to;
        if (from.begin < from.end && !inside) found[spans++] = from;
    }
    qsort(found, spans, sizeof *found, by_begin);
    bool result = !period || !spans || found[spans - 1].end <= found[0].begin + period;
    for (size_t k = 1; k < spans; k++) result = result && found[k - 1].end <= found[k].begin;
    return result;
}

/* apart(pairs) -> whether the arrays of each pair, a list's tuple, lie before or behind those of all others, or are other
 * columns of one matrix; the first may lie in the second one. */
static PyObject *apart(PyObject *Py_UNUSED(module), PyObject *pairs) {
    if (!PyList_Check(pairs)) return PyErr_Format(PyExc_TypeError, "apart takes a list of pairs of arrays");
    const Py_ssize_t count = PyList_GET_SIZE(pairs);
    npy_intp row = 0;
    for (Py_ssize_t k = 0; k < count; k++) {
        PyObject *pair = PyList_GET_ITEM(pairs, k), *x = NULL, *out = NULL;
        if (PyTuple_Check(pair) && PyTuple_GET_SIZE(pair) == 2)
            x = PyTuple_GET_ITEM(pair, 0), out = PyTuple_GET_ITEM(pair, 1);
        if (!x || !PyArray_Check(x) || !PyArray_Check(out))
            return PyErr_Format(PyExc_TypeError, "apart takes a list of pairs of arrays");
        for (int axis = 0; axis < PyArray_NDIM((PyArrayObject *)out); axis++) {
            const npy_intp step = PyArray_STRIDE((PyArrayObject *)out, axis);
            if (step > row) row = step;
        }
    }
    extent *found = PyMem_Malloc((size_t)(2 * count + 1) * sizeof *found);
    if (!found) return PyErr_NoMemory();
    const bool result = lie_apart(pairs, found, 0) || (row && lie_apart(pairs, found, (uintptr_t)row));
    PyMem_Free(found);
    return PyBool_FromLong(result);
}

static PyMethodDef functions[] = {
    {"borrowed", FAST(borrowed), NULL},
    {"apart", apart, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};

int borrowed_add_to(PyObject *module) {
    return PyArray_ImportNumPyAPI() < 0 ? -1 : PyModule_AddFunctions(module, functions);
}
