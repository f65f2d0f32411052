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
    const char *begin, *end; /* the addresses between which an array's elements lie */
} extent;

static extent extent_of(PyArrayObject *array) {
    extent its = {PyArray_DATA(array), (const char *)PyArray_DATA(array) + PyArray_ITEMSIZE(array)};
    for (int k = 0; k < PyArray_NDIM(array); k++) {
        const npy_intp reach = (PyArray_DIM(array, k) - 1) * PyArray_STRIDE(array, k);
        if (reach < 0) its.begin += reach;
        else its.end += reach;
    }
    return PyArray_NBYTES(array) ? its : (extent){0};
}

static int by_begin(const void *a, const void *b) {
    const uintptr_t left = (uintptr_t)((const extent *)a)->begin, right = (uintptr_t)((const extent *)b)->begin;
    return left < right ? -1 : left > right;
}

/* apart(pairs) -> whether the arrays of each pair, a list's tuple, lie before or behind those of all others; the first
 * may lie in the second one. */
static PyObject *apart(PyObject *Py_UNUSED(module), PyObject *pairs) {
    if (!PyList_Check(pairs)) return PyErr_Format(PyExc_TypeError, "apart takes a list of pairs of arrays");
    const Py_ssize_t count = PyList_GET_SIZE(pairs);
    extent *found = PyMem_Malloc((size_t)(2 * count + 1) * sizeof *found);
    if (!found) return PyErr_NoMemory();
    size_t spans = 0;
    bool result = true;
    for (Py_ssize_t k = 0; k < count; k++) {
        PyObject *pair = PyList_GET_ITEM(pairs, k), *x = NULL, *out = NULL;
        if (PyTuple_Check(pair) && PyTuple_GET_SIZE(pair) == 2)
            x = PyTuple_GET_ITEM(pair, 0), out = PyTuple_GET_ITEM(pair, 1);
        if (!x || !PyArray_Check(x) || !PyArray_Check(out)) {
            PyErr_SetString(PyExc_TypeError, "apart takes a list of pairs of arrays");
            PyMem_Free(found);
            return NULL;
        }
        const extent from = extent_of((PyArrayObject *)x), to = extent_of((PyArrayObject *)out);
        found[spans++] = to;
        if (from.begin < to.begin || from.end > to.end) found[spans++] = from;
    }
    qsort(found, spans, sizeof *found, by_begin);
    for (size_t k = 1; k < spans; k++) result = result && found[k - 1].end <= found[k].begin;
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
