/* Flushes, fences and invalidates for programs in Python that keep arrays in a mapping of a pool (cxlemu/program).
 * Under `cxlemu exec` they call its runtime, as cxl.h does; otherwise they are the machine's own instructions. */
#define _GNU_SOURCE
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "lines.h"
#include "modules.h"

#include <dlfcn.h>
#include <string.h>

/* An operation on a range of bytes that lie together. */
typedef void range_call(const void *at, size_t nbytes);

static void machine_flush(const void *at, size_t nbytes) { lines_flush(at, (int64_t)nbytes, 0); }
static void machine_writeback(const void *at, size_t nbytes) { lines_flush(at, (int64_t)nbytes, 1); }
static void machine_invalidate(const void *at, size_t nbytes) { lines_invalidate(at, (int64_t)nbytes); }
static void machine_expect_stale(const void *at, size_t nbytes) { (void)at, (void)nbytes; }
static void machine_store_nt(void *to, const void *from, size_t nbytes) { lines_copy_nt(to, from, (int64_t)nbytes, 0); }

enum { ON_FLUSH, ON_WRITEBACK, ON_INVALIDATE, ON_EXPECT_STALE, RANGES };
static range_call *on_range[RANGES] = {machine_flush, machine_writeback, machine_invalidate, machine_expect_stale};
static void (*on_fence)(void) = lines_fence;
static void (*on_store_nt)(void *to, const void *from, size_t nbytes) = machine_store_nt;

/* Copy the runtime's function of that name into *into, if it is there. By bytes, as ISO C does not convert what dlsym
 * returns to a pointer to a function. */
static void emulated(const char *name, void *into, size_t size) {
    void *found = dlsym(RTLD_DEFAULT, name);
    if (found) memcpy(into, &found, size);
}

static void find_emulator(void) {
    emulated("cxlemu_cxl_flush", &on_range[ON_FLUSH], sizeof on_range[ON_FLUSH]);
    emulated("cxlemu_cxl_writeback", &on_range[ON_WRITEBACK], sizeof on_range[ON_WRITEBACK]);
    emulated("cxlemu_cxl_invalidate", &on_range[ON_INVALIDATE], sizeof on_range[ON_INVALIDATE]);
    emulated("cxlemu_cxl_expect_stale", &on_range[ON_EXPECT_STALE], sizeof on_range[ON_EXPECT_STALE]);
    emulated("cxlemu_cxl_fence", &on_fence, sizeof on_fence);
    emulated("cxlemu_cxl_store_nt", &on_store_nt, sizeof on_store_nt);
}

/* Call `call` for each run of bytes that lie together, in the order of the indices. */
static void each_run(const Py_buffer *view, int dim, const char *at, range_call *call) {
    Py_ssize_t together = view->itemsize;
    int inner = view->ndim;
    while (inner > dim && view->strides[inner - 1] == together) together *= view->shape[--inner];
    if (inner == dim) {
        if (together) call(at, (size_t)together);
        return;
    }
    for (Py_ssize_t k = 0; k < view->shape[dim]; k++) each_run(view, dim + 1, at + k * view->strides[dim], call);
}

static PyObject *call_ranges(PyObject *array, range_call *call) {
    Py_buffer view;
    if (PyObject_GetBuffer(array, &view, PyBUF_STRIDES) < 0) return NULL;
    Py_BEGIN_ALLOW_THREADS
    each_run(&view, 0, view.buf, call);
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&view);
    Py_RETURN_NONE;
}

static PyObject *flush(PyObject *module, PyObject *array) {
    (void)module;
    return call_ranges(array, on_range[ON_FLUSH]);
}

static PyObject *writeback(PyObject *module, PyObject *array) {
    (void)module;
    return call_ranges(array, on_range[ON_WRITEBACK]);
}

static PyObject *invalidate(PyObject *module, PyObject *array) {
    (void)module;
    return call_ranges(array, on_range[ON_INVALIDATE]);
}

static PyObject *expect_stale(PyObject *module, PyObject *array) {
    (void)module;
    return call_ranges(array, on_range[ON_EXPECT_STALE]);
}

static PyObject *fence(PyObject *module, PyObject *none) {
    (void)module, (void)none;
    Py_BEGIN_ALLOW_THREADS
    on_fence();
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

static PyObject *store_nt(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    (void)module;
    Py_buffer to, from;
    if (count != 2) return PyErr_Format(PyExc_TypeError, "store_nt takes an array and the bytes to store there");
    if (PyObject_GetBuffer(args[0], &to, PyBUF_WRITABLE) < 0) return NULL;
    if (PyObject_GetBuffer(args[1], &from, PyBUF_SIMPLE) < 0) {
        PyBuffer_Release(&to);
        return NULL;
    }
    const bool fits = to.len == from.len;
    if (fits) {
        Py_BEGIN_ALLOW_THREADS
        on_store_nt(to.buf, from.buf, (size_t)from.len);
        Py_END_ALLOW_THREADS
    } else {
        PyErr_Format(PyExc_ValueError, "the array has %zd bytes, but %zd are to be stored", to.len, from.len);
    }
    PyBuffer_Release(&to);
    PyBuffer_Release(&from);
    return fits ? Py_NewRef(Py_None) : NULL;
}

static PyMethodDef methods[] = {
    {"program_flush", flush, METH_O, "program_flush(array): see cxlemu.program.flush."},
    {"program_writeback", writeback, METH_O, "program_writeback(array): see cxlemu.program.writeback."},
    {"program_invalidate", invalidate, METH_O, "program_invalidate(array): see cxlemu.program.invalidate."},
    {"program_expect_stale", expect_stale, METH_O, "program_expect_stale(array): see cxlemu.program.expect_stale."},
    {"program_fence", fence, METH_NOARGS, "program_fence(): see cxlemu.program.fence."},
    {"program_store_nt", FAST(store_nt), "program_store_nt(array, data): see cxlemu.program.store_nt."},
    {NULL, NULL, 0, NULL},
};

int program_add_to(PyObject *module) {
    find_emulator();
    return PyModule_AddFunctions(module, methods);
}
