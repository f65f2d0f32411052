/* Python's type Shadow: the memory of one rank on an emulated host. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "modules.h"
#include "shadow.h"

typedef struct {
    PyObject_HEAD shadow s; /* its lock is NULL until it is made */
    PyObject *lock;
    Py_buffer storage, damage;
    Py_buffer cards[MAX_CARDS];
    int card_views;
} Shadow;

static void Shadow_dealloc(Shadow *self) {
    shadow_discard(&self->s);
    for (int k = 0; k < self->card_views; k++) PyBuffer_Release(&self->cards[k]);
    if (self->storage.obj) PyBuffer_Release(&self->storage);
    if (self->damage.obj) PyBuffer_Release(&self->damage);
    Py_XDECREF(self->lock);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static int hold_cards(Shadow *self, PyObject *cards) {
    const Py_ssize_t count = PySequence_Size(cards);
    if (count < 1 || count > MAX_CARDS) {
        if (!PyErr_Occurred()) PyErr_Format(PyExc_ValueError, "a pool has 1 to %d cards", MAX_CARDS);
        return -1;
    }
    for (Py_ssize_t k = 0; k < count; k++) {
        PyObject *card = PySequence_GetItem(cards, k);
        if (!card) return -1;
        Py_buffer *view = &self->cards[k];
        const int held = PyObject_GetBuffer(card, view, PyBUF_WRITABLE);
        Py_DECREF(card);
        if (held < 0) return -1;
        self->card_views++;
        if (view->len != self->cards[0].len || view->len % LINE_BYTES || view->len == 0 || (uintptr_t)view->buf % 8)
            return RAISED(PyExc_ValueError, "cards are of one size, of whole lines, and aligned to 8 bytes");
    }
    self->s.card_count = (int32_t)count, self->s.card_bytes = self->cards[0].len;
    return 0;
}

/* Find the parts of the host's cache in its storage, as HostCache in memory/cache.py lays them out. Return 0, or -1
 * with an exception. */
static int divide_storage(Shadow *self, int32_t host) {
    const int64_t count = self->s.card_count, card_bytes = self->s.card_bytes, lines = card_bytes / LINE_BYTES;
    uint8_t *data = self->storage.buf;
    if (self->storage.len / count / 2 < card_bytes + lines)
        return RAISED(PyExc_ValueError, "the storage is too small for a cache of these cards");
    uint8_t *posted = data + count * card_bytes, *state = posted + count * card_bytes, *pending = state + count * lines;
    for (int64_t k = 0; k < count; k++)
        self->s.cards[k] = (card_cache){self->cards[k].buf,
                                        data + k * card_bytes,
                                        posted + k * card_bytes,
                                        state + k * lines,
                                        pending + k * lines,
                                        self->damage.buf,
                                        host,
                                        (int32_t)k};
    return 0;
}

static int Shadow_init(Shadow *self, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"cards", "storage", "lock", "lock_s", "adversary", "host", "damage", NULL};
    PyObject *cards, *lock, *adversary_of;
    int host;
    if (self->lock) return RAISED(PyExc_RuntimeError, "a Shadow is made once");
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "Ow*OdOiw*", names, &cards, &self->storage, &lock, &self->s.lock_s,
                                     &adversary_of, &host, &self->damage))
        return -1;
    if (host < 0 || host >= 1 << 16 || self->damage.len < DAMAGE_BYTES || (uintptr_t)self->damage.buf % 8)
        return RAISED(PyExc_ValueError, "a host is a number of 16 bits, and damage a page of 1024 bytes, aligned to 8");
    self->lock = Py_NewRef(lock);
    host_lock *its = host_lock_of(lock);
    if (!its || hold_cards(self, cards) < 0 || divide_storage(self, host) < 0) return -1;
    if (adversary_of != Py_None) {
        adversary *nature = &self->s.nature;
        unsigned long long state;
        if (!PyTuple_Check(adversary_of)) return RAISED(PyExc_TypeError, "an adversary is its state and its rates");
        if (!PyArg_ParseTuple(adversary_of, "Kddd", &state, &nature->rates[EVICT], &nature->rates[PREFETCH],
                              &nature->rates[LAND]))
            return -1;
        nature->state = state;
        nature->card_lines = self->s.card_bytes / LINE_BYTES;
        self->s.disturbed = true;
    }
    self->s.lock = its;
    return 0;
}

static bool takes(Shadow *self, Py_ssize_t count, Py_ssize_t wanted, const char *what) {
    if (!self->s.lock) PyErr_SetString(PyExc_RuntimeError, "the memory was never made");
    else if (count != wanted) PyErr_Format(PyExc_TypeError, "arguments are %s", what);
    return self->s.lock && count == wanted;
}

/* Read a range's place from args[0] and args[1]; if *nbytes < 0, read its size from args[2]. Return false with an
 * exception where the range is not within the pool. */
static bool place_given(Shadow *self, PyObject *const *args, long long *nbytes, place *at) {
    const long card = PyLong_AsLong(args[0]);
    const long long offset = PyErr_Occurred() ? 0 : PyLong_AsLongLong(args[1]);
    if (!PyErr_Occurred() && *nbytes < 0 && (*nbytes = PyLong_AsLongLong(args[2])) < 0 && !PyErr_Occurred())
        PyErr_SetString(PyExc_ValueError, "a range has no negative length");
    if (PyErr_Occurred()) return false;
    if (card < 0 || card >= self->s.card_count || offset < 0 || *nbytes > self->s.card_bytes ||
        offset > self->s.card_bytes - *nbytes) {
        PyErr_SetString(PyExc_ValueError, "the range is outside the pool");
        return false;
    }
    *at = (place){(int32_t)card, offset};
    return true;
}

static PyObject *outcome(enum status status) {
    if (status == DONE) Py_RETURN_NONE;
    if (status == OUT_OF_MEMORY) return PyErr_NoMemory();
    PyObject *code = PyLong_FromLong(status);
    if (status == LOCK_TIMEOUT) PyErr_SetString(PyExc_TimeoutError, "another process or thread holds the host's cache");
    else PyErr_SetObject(PyExc_OSError, code);
    Py_XDECREF(code);
    return NULL;
}

static strided contiguous(const Py_buffer *view) { return (strided){view->buf, view->len ? view->len : 1, 0}; }

enum access { STORE, STORE_NT, LOAD };

/* Store or load the bytes of args[2] at args[0] and args[1]. */
static PyObject *transfer(Shadow *self, PyObject *const *args, enum access access, enum follows next) {
    Py_buffer data;
    place at;
    if (PyObject_GetBuffer(args[2], &data, access == LOAD ? PyBUF_WRITABLE : PyBUF_SIMPLE) < 0) return NULL;
    long long nbytes = data.len;
    const bool ok = place_given(self, args, &nbytes, &at);
    enum status status = DONE;
    if (ok) {
        Py_BEGIN_ALLOW_THREADS
        if (access == LOAD) status = shadow_read(&self->s, at, contiguous(&data), nbytes);
        else if (access == STORE) status = shadow_write(&self->s, at, contiguous(&data), nbytes, next);
        else status = shadow_write_nt(&self->s, at, contiguous(&data), nbytes);
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&data);
    return ok ? outcome(status) : NULL;
}

static PyObject *Shadow_write(Shadow *self, PyObject *const *args, Py_ssize_t count) {
    if (!takes(self, count, 4, "card, offset, data, follows")) return NULL;
    const long next = PyLong_AsLong(args[3]);
    if (PyErr_Occurred()) return NULL;
    if (next < OTHER_NEXT || next > FLUSH_AND_FENCE_NEXT) return PyErr_Format(PyExc_ValueError, "follows is 0, 1 or 2");
    return transfer(self, args, STORE, (enum follows)next);
}

static PyObject *Shadow_write_nt(Shadow *self, PyObject *const *args, Py_ssize_t count) {
    return takes(self, count, 3, "card, offset, data") ? transfer(self, args, STORE_NT, OTHER_NEXT) : NULL;
}

static PyObject *Shadow_read(Shadow *self, PyObject *const *args, Py_ssize_t count) {
    return takes(self, count, 3, "card, offset, out") ? transfer(self, args, LOAD, OTHER_NEXT) : NULL;
}

static PyObject *Shadow_flush(Shadow *self, PyObject *const *args, Py_ssize_t count) {
    place at;
    long long nbytes = -1;
    if (!takes(self, count, 4, "card, offset, nbytes, keep")) return NULL;
    const int keep = PyObject_IsTrue(args[3]);
    if (keep < 0 || !place_given(self, args, &nbytes, &at)) return NULL;
    enum status status;
    Py_BEGIN_ALLOW_THREADS
    status = shadow_flush(&self->s, at, nbytes, keep);
    Py_END_ALLOW_THREADS
    return outcome(status);
}

static PyObject *Shadow_fence(Shadow *self, PyObject *const *args, Py_ssize_t count) {
    (void)args;
    if (!takes(self, count, 0, "none")) return NULL;
    enum status status;
    Py_BEGIN_ALLOW_THREADS
    status = shadow_fence(&self->s);
    Py_END_ALLOW_THREADS
    return outcome(status);
}

static PyObject *Shadow_invalidate(Shadow *self, PyObject *const *args, Py_ssize_t count) {
    place at;
    long long nbytes = -1;
    if (!takes(self, count, 3, "card, offset, nbytes") || !place_given(self, args, &nbytes, &at)) return NULL;
    enum status status;
    Py_BEGIN_ALLOW_THREADS
    status = shadow_invalidate(&self->s, at, nbytes);
    Py_END_ALLOW_THREADS
    return outcome(status);
}

static bool line_given(Shadow *self, PyObject *const *args, place *at) {
    long long nbytes = LINE_BYTES;
    if (!place_given(self, args, &nbytes, at)) return false;
    if (at->offset % LINE_BYTES) PyErr_SetString(PyExc_ValueError, "a doorbell begins a line");
    return at->offset % LINE_BYTES == 0;
}

static PyObject *Shadow_signal(Shadow *self, PyObject *const *args, Py_ssize_t count) {
    Py_buffer payload;
    place at;
    if (!takes(self, count, 4, "card, offset, word, payload") || !line_given(self, args, &at)) return NULL;
    const unsigned long long word = PyLong_AsUnsignedLongLong(args[2]);
    if (PyErr_Occurred() || PyObject_GetBuffer(args[3], &payload, PyBUF_SIMPLE) < 0) return NULL;
    const bool ok = payload.len <= PAYLOAD_BYTES;
    enum status status = DONE;
    if (ok) {
        Py_BEGIN_ALLOW_THREADS
        status = shadow_signal(&self->s, at, word, payload.buf, payload.len);
        Py_END_ALLOW_THREADS
    } else {
        PyErr_SetString(PyExc_ValueError, "the payload is too long for a line");
    }
    PyBuffer_Release(&payload);
    return ok ? outcome(status) : NULL;
}

/* poll(card, offset) -> the line's bytes */
static PyObject *Shadow_poll(Shadow *self, PyObject *const *args, Py_ssize_t count) {
    place at;
    uint8_t line[LINE_BYTES];
    if (!takes(self, count, 2, "card, offset") || !line_given(self, args, &at)) return NULL;
    enum status status;
    Py_BEGIN_ALLOW_THREADS
    status = shadow_poll(&self->s, at, line);
    Py_END_ALLOW_THREADS
    return status == DONE ? PyBytes_FromStringAndSize((const char *)line, LINE_BYTES) : outcome(status);
}

/* moved() -> (evictions, prefetches, landings) by the adversary, in lines */
static PyObject *Shadow_moved(Shadow *self, PyObject *none) {
    (void)none;
    const int64_t *moved = self->s.moved;
    return Py_BuildValue("(LLL)", (long long)moved[EVICT], (long long)moved[PREFETCH], (long long)moved[LAND]);
}

/* broken() -> (card, offset) of the line at which the last failed load failed */
static PyObject *Shadow_broken(Shadow *self, PyObject *none) {
    (void)none;
    return Py_BuildValue("(iL)", (int)self->s.broken.card, (long long)self->s.broken.offset);
}

static PyMethodDef shadow_methods[] = {
    {"write", FAST(Shadow_write),
     "write(card, offset, data, follows): 1 says that this rank flushes it next, 2 that it fences then."},
    {"write_nt", FAST(Shadow_write_nt), "write_nt(card, offset, data)"},
    {"read", FAST(Shadow_read), "read(card, offset, out)"},
    {"flush", FAST(Shadow_flush), "flush(card, offset, nbytes, keep)"},
    {"fence", FAST(Shadow_fence), "fence()"},
    {"invalidate", FAST(Shadow_invalidate), "invalidate(card, offset, nbytes)"},
    {"signal", FAST(Shadow_signal), "signal(card, offset, word, payload)"},
    {"poll", FAST(Shadow_poll), NULL},
    {"moved", (PyCFunction)Shadow_moved, METH_NOARGS, NULL},
    {"broken", (PyCFunction)Shadow_broken, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyTypeObject ShadowType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "cxlemu._native.Shadow",
    .tp_doc = "One rank's memory on its emulated host's cache.",
    .tp_basicsize = sizeof(Shadow),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = PyType_GenericNew,
    .tp_init = (initproc)Shadow_init,
    .tp_dealloc = (destructor)Shadow_dealloc,
    .tp_methods = shadow_methods,
};

shadow *shadow_of(PyObject *object) {
    if (!PyObject_TypeCheck(object, &ShadowType) || !((Shadow *)object)->s.lock) {
        PyErr_SetString(PyExc_TypeError, "a memory is None or a Shadow that was made");
        return NULL;
    }
    return &((Shadow *)object)->s;
}

int shadow_add_to(PyObject *module) { return PyModule_AddType(module, &ShadowType); }
