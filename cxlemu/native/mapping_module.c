/* Mappings of a card's pages in this process. They do not keep the card's descriptor, by which the process could reach
 * pages that it may not map. */
#define _GNU_SOURCE
#include "lines.h"
#include "modules.h"
#include "peer_memory.h"

#include <errno.h>
#include <sys/mman.h>

#ifndef MADV_POPULATE_WRITE /* Linux 5.14; older kernels say EINVAL */
#define MADV_POPULATE_WRITE 23
#endif

typedef struct {
    PyObject_HEAD uint8_t *used; /* where loads and stores go */
    Py_ssize_t nbytes;
    bool writable, by_lines;
} Mapping;

static int get_buffer(PyObject *object, Py_buffer *view, int flags) {
    const Mapping *self = (const Mapping *)object;
    return PyBuffer_FillInfo(view, object, self->used, self->nbytes, !self->writable, flags);
}

static void dealloc(PyObject *object) {
    Mapping *self = (Mapping *)object;
    uint8_t *pages = self->by_lines ? lines_unmapped(self->used) : self->used;
    munmap(pages, (size_t)self->nbytes);
    Py_TYPE(object)->tp_free(object);
}

static PyBufferProcs as_buffer = {.bf_getbuffer = get_buffer};

static PyTypeObject mapping_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "cxlemu._native.Mapping",
    .tp_doc = "Pages of a card as a buffer; unmapped when the last one that shows them is gone.",
    .tp_basicsize = sizeof(Mapping),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_dealloc = dealloc,
    .tp_as_buffer = &as_buffer,
};

static PyObject *map_pages(PyObject *module, PyObject *args) {
    (void)module;
    int fd, flags, writable, by_lines;
    long long offset;
    Py_ssize_t nbytes;
    if (!PyArg_ParseTuple(args, "iiLnpp", &fd, &flags, &offset, &nbytes, &writable, &by_lines)) return NULL;
    if (nbytes < 1 || offset < 0)
        return PyErr_Format(PyExc_ValueError, "no mapping has %zd bytes at %lld", nbytes, offset);
    Mapping *self = PyObject_New(Mapping, &mapping_type);
    if (!self) return NULL;
    void *pages = mmap(NULL, (size_t)nbytes, writable ? PROT_READ | PROT_WRITE : PROT_READ, flags, fd, (off_t)offset);
    if (pages == MAP_FAILED) {
        PyErr_SetFromErrno(PyExc_OSError);
        PyObject_Free(self);
        return NULL;
    }
    self->used = by_lines ? lines_mapped(pages, nbytes) : pages;
    self->nbytes = nbytes, self->writable = writable, self->by_lines = by_lines;
    PyObject *view = PyMemoryView_FromObject((PyObject *)self);
    Py_DECREF(self);
    return view;
}

/* Back pages with memory now, or return them to the system, which loses their bytes. */
static PyObject *back_pages(PyObject *module, PyObject *args) {
    (void)module;
    Py_buffer view;
    int backed, shared;
    if (!PyArg_ParseTuple(args, "w*pp", &view, &backed, &shared)) return NULL;
    int advice = backed ? MADV_POPULATE_WRITE : shared ? MADV_REMOVE : MADV_DONTNEED, failed = 0;
    Py_BEGIN_ALLOW_THREADS;
    do failed = madvise(view.buf, (size_t)view.len, advice) && errno != 0 ? errno : 0;
    while (failed == EINTR);
    Py_END_ALLOW_THREADS;
    PyBuffer_Release(&view);
    if (!failed) Py_RETURN_NONE;
    errno = failed;
    return PyErr_SetFromErrno(PyExc_OSError);
}

enum { LOOKED_AT = 1024 }; /* pages at a time */

/* Count the bytes of whole pages that have no memory yet. */
static PyObject *missing_bytes(PyObject *module, PyObject *args) {
    (void)module;
    Py_buffer view;
    if (!PyArg_ParseTuple(args, "y*", &view)) return NULL;
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), nbytes = (size_t)view.len;
    size_t missing = 0;
    int failed = 0;
    Py_BEGIN_ALLOW_THREADS;
    for (size_t at = 0; at < nbytes && !failed; at += LOOKED_AT * page) {
        unsigned char there[LOOKED_AT];
        const size_t length = nbytes - at < LOOKED_AT * page ? nbytes - at : LOOKED_AT * page;
        if (mincore((char *)view.buf + at, length, there)) failed = errno;
        for (size_t k = 0; k * page < length && !failed; k++) missing += there[k] & 1 ? 0 : page;
    }
    Py_END_ALLOW_THREADS;
    PyBuffer_Release(&view);
    if (!failed) return PyLong_FromSize_t(missing);
    errno = failed;
    return PyErr_SetFromErrno(PyExc_OSError);
}

/* Read bytes of another process on this machine. */
static PyObject *read_process(PyObject *module, PyObject *args) {
    (void)module;
    int pid;
    unsigned long long from;
    Py_buffer out;
    if (!PyArg_ParseTuple(args, "iKw*", &pid, &from, &out)) return NULL;
    int error;
    Py_BEGIN_ALLOW_THREADS;
    error = process_read(pid, from, out.buf, out.len);
    Py_END_ALLOW_THREADS;
    PyBuffer_Release(&out);
    if (!error) Py_RETURN_NONE;
    errno = error;
    return PyErr_SetFromErrno(PyExc_OSError);
}

static PyMethodDef methods[] = {
    {"map_pages", map_pages, METH_VARARGS,
     "map_pages(fd, flags, offset, nbytes, writable, by_lines) -> memoryview; by_lines: of a card whose lines this "
     "host "
     "flushes and invalidates itself. Raises OSError as mmap does."},
    {"back_pages", back_pages, METH_VARARGS,
     "back_pages(pages, backed, shared): takes memory for whole pages now, or gives it back: then they are zeros, for "
     "all that map them where they are shared. Raises OSError as madvise does."},
    {"missing_bytes", missing_bytes, METH_VARARGS,
     "missing_bytes(pages) -> how many bytes of whole pages have no memory yet, or not at this moment. Raises OSError "
     "as mincore does."},
    {"read_process", read_process, METH_VARARGS,
     "read_process(pid, address, out): fills out with bytes of a process. Raises OSError as process_vm_readv does."},
    {NULL, NULL, 0, NULL},
};

int mapping_add_to(PyObject *module) {
    return PyType_Ready(&mapping_type) < 0 ? -1 : PyModule_AddFunctions(module, methods);
}
