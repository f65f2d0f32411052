/* The one thin binding: a Program is a rank's part of a plan, bound to a pool; it runs with the GIL released. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "core.h"

#include <string.h>

#define MAX_VIEWS 512

typedef struct {
    PyObject_HEAD
    program p;
    uint8_t *card_pointers[256];
    Py_buffer views[MAX_VIEWS]; /* cards, tables and records, held as long as the program lives */
    int view_count;
    Py_buffer call_views[MAX_BUFFERS]; /* the user's arrays, held while a call runs */
    int call_view_count;
    bool running;
} Program;

static void *hold(Program *self, PyObject *object, int flags, Py_ssize_t *nbytes) {
    if (self->view_count == MAX_VIEWS) {
        PyErr_SetString(PyExc_ValueError, "too many cards or streams");
        return NULL;
    }
    Py_buffer *view = &self->views[self->view_count];
    if (PyObject_GetBuffer(object, view, flags) < 0) return NULL;
    self->view_count++;
    *nbytes = view->len;
    return view->buf;
}

static void release_call(Program *self) {
    for (int k = 0; k < self->call_view_count; k++) PyBuffer_Release(&self->call_views[k]);
    self->call_view_count = 0;
}

static void Program_dealloc(Program *self) {
    release_call(self);
    for (int k = 0; k < self->view_count; k++) PyBuffer_Release(&self->views[k]);
    PyMem_Free(self->p.events);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static int hold_cards(Program *self, PyObject *cards, int64_t extent_bytes) {
    Py_ssize_t count = PySequence_Size(cards), nbytes = 0;
    if (count < 1 || count > 256) {
        PyErr_SetString(PyExc_ValueError, "a pool has 1 to 256 cards");
        return -1;
    }
    for (Py_ssize_t k = 0; k < count; k++) {
        PyObject *card = PySequence_GetItem(cards, k);
        if (!card) return -1;
        self->card_pointers[k] = hold(self, card, PyBUF_WRITABLE, &nbytes);
        Py_DECREF(card);
        if (!self->card_pointers[k]) return -1;
        if (self->p.base < 0 || extent_bytes < 0 || extent_bytes > nbytes || self->p.base > nbytes - extent_bytes) {
            PyErr_Format(PyExc_ValueError, "card %zd ends before the communicator's extent does", k);
            return -1;
        }
        if ((uintptr_t)self->card_pointers[k] % LINE_BYTES) {
            PyErr_Format(PyExc_ValueError, "card %zd does not begin at a whole line", k);
            return -1;
        }
    }
    self->p.cards = self->card_pointers;
    self->p.card_count = (int32_t)count;
    return 0;
}

static int hold_streams(Program *self, PyObject *streams) {
    Py_ssize_t count = PySequence_Size(streams), nbytes = 0;
    if (count < 0 || count > MAX_STREAMS) {
        PyErr_Format(PyExc_ValueError, "a rank has at most %d streams", MAX_STREAMS);
        return -1;
    }
    for (Py_ssize_t k = 0; k < count; k++) {
        PyObject *stream = PySequence_GetItem(streams, k);
        if (!stream) return -1;
        self->p.records[k] = hold(self, stream, PyBUF_SIMPLE, &nbytes);
        Py_DECREF(stream);
        if (!self->p.records[k]) return -1;
        if (nbytes % (Py_ssize_t)sizeof(record)) {
            PyErr_SetString(PyExc_ValueError, "a stream is no whole number of records");
            return -1;
        }
        self->p.lengths[k] = nbytes / (Py_ssize_t)sizeof(record);
    }
    self->p.stream_count = (int32_t)count;
    return 0;
}

static int take_buffer_sizes(Program *self, PyObject *sizes) {
    Py_ssize_t count = PySequence_Size(sizes);
    if (count < 0 || count > MAX_BUFFERS) {
        PyErr_Format(PyExc_ValueError, "a rank has at most %d buffers", MAX_BUFFERS);
        return -1;
    }
    for (Py_ssize_t k = 0; k < count; k++) {
        PyObject *size = PySequence_GetItem(sizes, k);
        if (!size) return -1;
        self->p.buffer_bytes[k] = PyLong_AsLongLong(size);
        Py_DECREF(size);
        if (PyErr_Occurred()) return -1;
    }
    self->p.buffer_count = (int32_t)count;
    return 0;
}

static int Program_init(Program *self, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"cards", "base", "extent_bytes", "ranks", "slots", "doorbells_per_rank", "slot_card_bytes",
                            "doorbells_offset", "slot_doorbell_bytes", "data_offset", "regions", "groups", "streams",
                            "buffer_bytes", "events", NULL};
    PyObject *cards, *regions, *groups, *streams, *sizes;
    long long base, extent, slot_card, doorbells_offset, slot_doorbell, data_offset;
    Py_ssize_t nbytes = 0;
    if (self->view_count) {
        PyErr_SetString(PyExc_RuntimeError, "a Program is made once");
        return -1;
    }
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OLLiiiLLLLOOOOi", names, &cards, &base, &extent, &self->p.ranks,
                                     &self->p.slots, &self->p.doorbells_per_rank, &slot_card, &doorbells_offset,
                                     &slot_doorbell, &data_offset, &regions, &groups, &streams, &sizes,
                                     &self->p.event_count))
        return -1;
    self->p.base = base, self->p.slot_card_bytes = slot_card, self->p.doorbells_offset = doorbells_offset;
    self->p.slot_doorbell_bytes = slot_doorbell, self->p.data_offset = data_offset;
    if (hold_cards(self, cards, extent) < 0 || hold_streams(self, streams) < 0 || take_buffer_sizes(self, sizes) < 0)
        return -1;
    if (!(self->p.regions = hold(self, regions, PyBUF_SIMPLE, &nbytes))) return -1;
    self->p.region_count = (int32_t)(nbytes / (Py_ssize_t)sizeof(region));
    if (!(self->p.groups = hold(self, groups, PyBUF_SIMPLE, &nbytes))) return -1;
    self->p.group_count = (int32_t)(nbytes / (Py_ssize_t)sizeof(group));
    if (self->p.event_count < 0 || !(self->p.events = PyMem_Calloc((size_t)self->p.event_count + 1, 1))) {
        PyErr_SetString(PyExc_ValueError, "no room for that many events");
        return -1;
    }
    int32_t stream;
    int64_t at;
    if (!program_check(&self->p, extent, &stream, &at)) {
        if (stream < 0) PyErr_SetString(PyExc_ValueError, "the plan's tables do not fit its layout");
        else PyErr_Format(PyExc_ValueError, "record %lld of stream %d is not valid", (long long)at, (int)stream);
        return -1;
    }
    return 0;
}

/* start(epoch, tag, *buffers): begin a call. The buffers are held until it is done, or another one begins. */
static PyObject *Program_start(Program *self, PyObject *const *args, Py_ssize_t count) {
    if (self->running) {
        PyErr_SetString(PyExc_RuntimeError, "the program runs in another thread");
        return NULL;
    }
    if (count != 2 + self->p.buffer_count) {
        PyErr_Format(PyExc_TypeError, "start takes an epoch, a tag and %d buffers", (int)self->p.buffer_count);
        return NULL;
    }
    long long epoch = PyLong_AsLongLong(args[0]);
    unsigned long tag = PyLong_AsUnsignedLong(args[1]);
    if (PyErr_Occurred()) return NULL;
    if (epoch < 0 || epoch >> 40 || tag >> TAG_BITS) {
        PyErr_SetString(PyExc_ValueError, "the epoch or the tag is out of range");
        return NULL;
    }
    release_call(self);
    for (int k = 0; k < self->p.buffer_count; k++) {
        /* Whether a buffer is written, the plan says: only then it must be writable. NumPy's read-only arrays are
         * refused for outputs before this, so inputs may be of either kind. */
        if (PyObject_GetBuffer(args[2 + k], &self->call_views[k], PyBUF_SIMPLE) < 0) return NULL;
        self->call_view_count++;
        if (self->call_views[k].len < self->p.buffer_bytes[k]) {
            PyErr_Format(PyExc_ValueError, "buffer %d has %zd bytes, the plan needs %lld", k, self->call_views[k].len,
                         (long long)self->p.buffer_bytes[k]);
            return NULL;
        }
        self->p.buffers[k] = self->call_views[k].buf;
    }
    self->p.epoch = epoch, self->p.tag = (uint16_t)tag;
    memset(self->p.position, 0, sizeof self->p.position);
    memset(self->p.events, 0, (size_t)self->p.event_count);
    Py_RETURN_NONE;
}

/* advance(idle_ns, spins) -> (status, [(stream, at, doorbell, wanted, shows), ...]) */
static PyObject *Program_advance(Program *self, PyObject *const *args, Py_ssize_t count) {
    if (count != 2) {
        PyErr_SetString(PyExc_TypeError, "advance takes idle_ns and spins");
        return NULL;
    }
    long long idle_ns = PyLong_AsLongLong(args[0]), spins = PyLong_AsLongLong(args[1]);
    if (PyErr_Occurred()) return NULL;
    if (self->running || self->call_view_count != self->p.buffer_count) {
        PyErr_SetString(PyExc_RuntimeError, "no call was started, or it runs in another thread");
        return NULL;
    }
    obstacle found[MAX_STREAMS];
    int waiting = 0;
    enum status status;
    self->running = true;
    Py_BEGIN_ALLOW_THREADS
    status = program_run(&self->p, idle_ns, spins, found, &waiting);
    Py_END_ALLOW_THREADS
    self->running = false;
    if (status == DONE) {
        release_call(self);
        self->call_view_count = 0;
    }
    PyObject *list = PyList_New(waiting);
    for (int k = 0; list && k < waiting; k++) {
        PyObject *one = Py_BuildValue("(iLiLL)", (int)found[k].stream, (long long)found[k].at, (int)found[k].doorbell,
                                      (long long)found[k].wanted, (long long)found[k].shows);
        if (!one) Py_CLEAR(list);
        else PyList_SET_ITEM(list, k, one);
    }
    return list ? Py_BuildValue("(iN)", (int)status, list) : NULL;
}

/* skip(stream): the record that the stream stands at was executed elsewhere (a COMPUTE kernel). */
static PyObject *Program_skip(Program *self, PyObject *argument) {
    long stream = PyLong_AsLong(argument);
    if (PyErr_Occurred()) return NULL;
    if (self->running || stream < 0 || stream >= self->p.stream_count ||
        self->p.position[stream] >= self->p.lengths[stream]) {
        PyErr_SetString(PyExc_RuntimeError, "there is no record to skip");
        return NULL;
    }
    self->p.position[stream]++;
    Py_RETURN_NONE;
}

static PyObject *module_fold(PyObject *module, PyObject *args) {
    int dtype, redop;
    long long divisor;
    Py_buffer dst, a, b, c = {0};
    PyObject *third;
    (void)module;
    if (!PyArg_ParseTuple(args, "iiw*y*y*OL", &dtype, &redop, &dst, &a, &b, &third, &divisor)) return NULL;
    bool ok = dtype >= 0 && dtype < DTYPES && redop > 0 && redop < REDOP_END && divisor > 0 && a.len == dst.len &&
              b.len == dst.len && dst.len % item_bytes[dtype] == 0;
    if (third != Py_None) ok = PyObject_GetBuffer(third, &c, PyBUF_SIMPLE) == 0 && c.len == dst.len && ok;
    if (ok) fold(dtype, redop, dst.buf, a.buf, b.buf, c.obj ? c.buf : NULL, dst.len, divisor);
    PyBuffer_Release(&dst), PyBuffer_Release(&a), PyBuffer_Release(&b);
    if (c.obj) PyBuffer_Release(&c);
    if (!ok) {
        if (!PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, "operands differ in size, or there is no such reduction");
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyMethodDef program_methods[] = {
    {"start", (PyCFunction)(void (*)(void))Program_start, METH_FASTCALL, "start(epoch, tag, *buffers): begin a call."},
    {"advance", (PyCFunction)(void (*)(void))Program_advance, METH_FASTCALL,
     "advance(idle_ns, spins) -> (status, obstacles): go on until done, or nothing progressed for idle_ns."},
    {"skip", (PyCFunction)Program_skip, METH_O, "skip(stream): its record was executed elsewhere."},
    {NULL, NULL, 0, NULL},
};

static PyTypeObject ProgramType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "cxlemu._native.Program",
    .tp_doc = "A rank's part of a plan, bound to the cards of a pool.",
    .tp_basicsize = sizeof(Program),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = PyType_GenericNew,
    .tp_init = (initproc)Program_init,
    .tp_dealloc = (destructor)Program_dealloc,
    .tp_methods = program_methods,
};

static PyMethodDef module_methods[] = {
    {"fold", module_fold, METH_VARARGS, "fold(dtype, redop, dst, a, b, c or None, divisor): combine arrays of bytes."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef native_module = {
    PyModuleDef_HEAD_INIT, .m_name = "cxlemu._native", .m_doc = "The native engine.", .m_size = -1, .m_methods = module_methods,
};

PyMODINIT_FUNC PyInit__native(void) {
    if (PyType_Ready(&ProgramType) < 0) return NULL;
    PyObject *module = PyModule_Create(&native_module);
    if (!module) return NULL;
    if (PyModule_AddObjectRef(module, "Program", (PyObject *)&ProgramType) < 0) {
        Py_DECREF(module);
        return NULL;
    }
    return module;
}
