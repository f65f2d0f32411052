/* Arrays on memory that another library's object owns, such as a tensor. That library's own view may take longer than a
 * call, and change the object: a torch.Tensor cannot be resized after numpy(). */
#include "modules.h"

#define NPY_NO_DEPRECATED_API NPY_2_0_API_VERSION
#include <numpy/arrayobject.h>

/* borrowed(address, count, dtype, owner) -> an array that holds a reference to owner. The caller guarantees that the
 * memory stays there as long as owner does. */
static PyObject *borrowed(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t given) {
    if (given != 4 || !PyArray_DescrCheck(args[2])) {
        PyErr_SetString(PyExc_TypeError, "borrowed takes an address, a count, a dtype and the memory's owner");
        return NULL;
    }
    void *address = PyLong_AsVoidPtr(args[0]);
    npy_intp count = PyLong_AsSsize_t(args[1]);
    if (PyErr_Occurred()) return NULL;
    if (count < 0 || (count && !address)) {
        PyErr_SetString(PyExc_ValueError, "there is no memory to borrow");
        return NULL;
    }
    PyArray_Descr *dtype = (PyArray_Descr *)Py_NewRef(args[2]); /* the new array takes this reference */
    PyObject *array = PyArray_NewFromDescr(&PyArray_Type, dtype, 1, &count, NULL, address,
                                           address ? NPY_ARRAY_CARRAY : 0, NULL);
    if (array && PyArray_SetBaseObject((PyArrayObject *)array, Py_NewRef(args[3])) < 0) Py_CLEAR(array);
    return array;
}

static PyMethodDef functions[] = {
    {"borrowed", (PyCFunction)(void (*)(void))borrowed, METH_FASTCALL,
     "borrowed(address, count, dtype, owner) -> an array of count elements at an address, which keeps the owner."},
    {NULL, NULL, 0, NULL},
};

int borrowed_add_to(PyObject *module) {
    return PyArray_ImportNumPyAPI() < 0 ? -1 : PyModule_AddFunctions(module, functions);
}
