/* The cache-line instructions, for memories written in Python. A range that leaves its card is refused. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "copy.h"
#include "lines.h"
#include "modules.h"

#include <time.h>

/* Return the bytes of `card` from `offset` on, and hold its buffer in *view, which the caller releases; NULL with an
 * exception where the range leaves the card. flags: PyBUF_WRITABLE for a range that is stored to. */
static uint8_t *range_of(PyObject *card, PyObject *offset, long long nbytes, int flags, Py_buffer *view) {
    const long long at = PyLong_AsLongLong(offset);
    if (PyErr_Occurred()) return NULL;
    if (PyObject_GetBuffer(card, view, flags) < 0) return NULL;
    if (at < 0 || nbytes < 0 || nbytes > view->len || at > view->len - nbytes) {
        PyErr_Format(PyExc_ValueError, "%lld bytes at %lld are outside a card of %zd bytes", nbytes, at, view->len);
        PyBuffer_Release(view);
        return NULL;
    }
    return (uint8_t *)view->buf + at;
}

static bool takes(Py_ssize_t count, Py_ssize_t wanted, const char *what) {
    if (count != wanted) PyErr_Format(PyExc_TypeError, "%s", what);
    return count == wanted;
}

static PyObject *flush(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    (void)module;
    if (!takes(count, 4, "flush takes a card, an offset, a number of bytes and whether to keep the lines")) return NULL;
    const int keep = PyObject_IsTrue(args[3]);
    const long long nbytes = PyLong_AsLongLong(args[2]);
    Py_buffer view;
    if (keep < 0 || PyErr_Occurred()) return NULL;
    const uint8_t *at = range_of(args[0], args[1], nbytes, PyBUF_SIMPLE, &view);
    if (!at) return NULL;
    Py_BEGIN_ALLOW_THREADS
    lines_flush(at, nbytes, keep);
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&view);
    Py_RETURN_NONE;
}

static PyObject *fence(PyObject *module, PyObject *none) {
    (void)module, (void)none;
    lines_fence();
    Py_RETURN_NONE;
}

static PyObject *invalidate(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    (void)module;
    if (!takes(count, 3, "invalidate takes a card, an offset and a number of bytes")) return NULL;
    const long long nbytes = PyLong_AsLongLong(args[2]);
    Py_buffer view;
    if (PyErr_Occurred()) return NULL;
    const uint8_t *at = range_of(args[0], args[1], nbytes, PyBUF_SIMPLE, &view);
    if (!at) return NULL;
    Py_BEGIN_ALLOW_THREADS
    lines_invalidate(at, nbytes);
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&view);
    Py_RETURN_NONE;
}

typedef struct {
    int64_t card, offset, nbytes;
} extent;

/* Store zeros in every extent, after all were checked against their cards. */
static bool clear_all(const Py_buffer *cards, Py_ssize_t count, const extent *its, Py_ssize_t extents, int64_t base,
                      bool flushes) {
    for (Py_ssize_t k = 0; k < extents; k++) {
        const extent e = its[k];
        if (e.card < 0 || e.card >= count || e.offset < 0 || e.nbytes < 0) return false;
        const int64_t room = cards[e.card].len;
        if (base > room || e.offset > room - base || e.nbytes > room - base - e.offset) return false;
    }
    for (Py_ssize_t k = 0; k < extents; k++) {
        uint8_t *at = (uint8_t *)cards[its[k].card].buf + base + its[k].offset;
        memset(at, 0, (size_t)its[k].nbytes);
        if (flushes) lines_flush(at, its[k].nbytes, 0);
    }
    return true;
}

/* clear(cards, base, extents, flushes): see clear_all. */
static PyObject *clear(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    (void)module;
    if (!takes(count, 4, "clear takes cards, a base, extents and whether to flush")) return NULL;
    const long long base = PyLong_AsLongLong(args[1]);
    const int flushes = PyObject_IsTrue(args[3]);
    if (flushes < 0 || PyErr_Occurred()) return NULL;
    if (!PyTuple_Check(args[0]) || base < 0)
        return PyErr_SetString(PyExc_TypeError, "clear takes a tuple of cards and a base of 0 or more"), NULL;
    const Py_ssize_t cards = PyTuple_GET_SIZE(args[0]);
    Py_buffer list, *views = PyMem_Calloc((size_t)cards + 1, sizeof *views);
    if (!views) return PyErr_NoMemory();
    Py_ssize_t held = 0;
    bool ok = PyObject_GetBuffer(args[2], &list, PyBUF_SIMPLE) == 0;
    const bool listed = ok;
    if (ok && list.len % (Py_ssize_t)sizeof(extent)) {
        PyErr_SetString(PyExc_ValueError, "an extent has three numbers of 64 bits");
        ok = false;
    }
    while (ok && held < cards) {
        ok = PyObject_GetBuffer(PyTuple_GET_ITEM(args[0], held), &views[held], PyBUF_WRITABLE) == 0;
        held += ok;
    }
    if (ok && !clear_all(views, cards, list.buf, list.len / (Py_ssize_t)sizeof(extent), base, flushes)) {
        PyErr_SetString(PyExc_ValueError, "an extent is outside its card");
        ok = false;
    }
    while (held > 0) PyBuffer_Release(&views[--held]);
    if (listed) PyBuffer_Release(&list);
    PyMem_Free(views);
    return ok ? Py_NewRef(Py_None) : NULL;
}

static PyObject *copy_nt(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    (void)module;
    if (!takes(count, 4, "copy_nt takes a card, an offset, the bytes to store and a store's width or 0")) return NULL;
    const long long width = PyLong_AsLongLong(args[3]);
    if (PyErr_Occurred()) return NULL;
    if (width && (width > 64 || !lines_has_width((int)width)))
        return PyErr_Format(PyExc_ValueError, "this machine has no non-temporal stores of %lld bytes", width);
    Py_buffer data, view;
    if (PyObject_GetBuffer(args[2], &data, PyBUF_SIMPLE) < 0) return NULL;
    uint8_t *at = range_of(args[0], args[1], data.len, PyBUF_WRITABLE, &view);
    if (at) {
        Py_BEGIN_ALLOW_THREADS
        lines_copy_nt(at, data.buf, data.len, (int)width);
        Py_END_ALLOW_THREADS
        PyBuffer_Release(&view);
    }
    PyBuffer_Release(&data);
    return at ? Py_NewRef(Py_None) : NULL;
}

static PyObject *copy(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    (void)module;
    if (!takes(count, 4, "copy takes a card, an offset, the bytes to store, and the way")) return NULL;
    static void (*const WAYS[])(void *, const void *, int64_t) = {copy_bytes, copy_by_vectors, copy_bytes_past};
    const long way = PyLong_AsLong(args[3]);
    if (way < 0 || way >= (long)(sizeof WAYS / sizeof *WAYS)) {
        if (!PyErr_Occurred()) PyErr_Format(PyExc_ValueError, "there is no way %ld to copy", way);
        return NULL;
    }
    Py_buffer data, view;
    if (PyObject_GetBuffer(args[2], &data, PyBUF_SIMPLE) < 0) return NULL;
    uint8_t *at = range_of(args[0], args[1], data.len, PyBUF_WRITABLE, &view);
    if (at) {
        Py_BEGIN_ALLOW_THREADS;
        WAYS[way](at, data.buf, data.len);
        Py_END_ALLOW_THREADS
        PyBuffer_Release(&view);
    }
    PyBuffer_Release(&data);
    return at ? Py_NewRef(Py_None) : NULL;
}

static double seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* pushes_s(card, stores) -> seconds for a fence per line of the card; with `stores`, after a word is stored there and
 * flushed. */
static PyObject *pushes_s(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    (void)module;
    if (!takes(count, 2, "pushes_s takes a card, and whether to store")) return NULL;
    const int stores = PyObject_IsTrue(args[1]);
    Py_buffer view;
    if (stores < 0 || PyObject_GetBuffer(args[0], &view, PyBUF_WRITABLE) < 0) return NULL;
    double took;
    Py_BEGIN_ALLOW_THREADS
    const double begin = seconds();
    for (Py_ssize_t at = 0; at + LINE_BYTES <= view.len; at += LINE_BYTES) {
        uint8_t *line = (uint8_t *)view.buf + at;
        if (stores) *(volatile uint8_t *)line = 1, lines_flush(line, LINE_BYTES, 0);
        lines_fence();
    }
    took = seconds() - begin;
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&view);
    return PyFloat_FromDouble(took);
}

static PyObject *instructions(PyObject *module, PyObject *none) {
    (void)module, (void)none;
    return PyUnicode_FromString(lines_instructions());
}

static PyMethodDef methods[] = {
    {"flush", FAST(flush), "flush(card, offset, nbytes, keep): write lines back."},
    {"clear", FAST(clear),
     "clear(cards, base, extents, flushes): store zeros in all (card, offset, nbytes), from base on, and flush them."},
    {"fence", fence, METH_NOARGS, "fence(): what was flushed or stored by copy_nt before is in the pool."},
    {"invalidate", FAST(invalidate), "invalidate(card, offset, nbytes): flush and drop lines, then fence later loads."},
    {"copy_nt", FAST(copy_nt),
     "copy_nt(card, offset, data, width): store by non-temporal stores of width bytes, 0 for the widest."},
    {"copy", FAST(copy),
     "copy(card, offset, data, way): store as plans do (0), by vectors whatever the size and the machine (1), or as "
     "plans do past the caches (2)."},
    {"pushes_s", FAST(pushes_s), NULL},
    {"lines_instructions", instructions, METH_NOARGS, "lines_instructions() -> the names of those in use here."},
    {NULL, NULL, 0, NULL},
};

int lines_add_to(PyObject *module) { return PyModule_AddFunctions(module, methods); }
