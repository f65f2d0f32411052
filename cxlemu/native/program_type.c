/* The type Program: a rank's part of a plan, bound to a pool. It runs without the GIL. */
#include "layout_module.h"
#include "modules.h"
#include "pace.h"
#include "peer_memory.h"
#include "python.h"
#include "shadow.h"
#include "told_module.h"

#include <stdlib.h>
#include <structmember.h>

#include <string.h>

#define MAX_EVENTS (1 << 20) /* a byte each, cleared for every call */

/* Return a copy of a table, which the caller frees, and its number of rows in *count; NULL with an exception on
 * failure. A copy cannot change between check and run, and is aligned. */
static void *copy(PyObject *object, size_t row_bytes, int64_t *count) {
    Py_buffer view;
    void *copied = NULL;
    if (PyObject_GetBuffer(object, &view, PyBUF_SIMPLE) < 0) return NULL;
    const size_t nbytes = (size_t)view.len;
    if (nbytes % row_bytes || nbytes / row_bytes > INT32_MAX)
        PyErr_SetString(PyExc_ValueError, "a table is no whole number of rows, or too long");
    else if (!(copied = PyMem_Malloc(nbytes))) PyErr_NoMemory();
    else memcpy(copied, view.buf, nbytes), *count = (int64_t)(nbytes / row_bytes);
    PyBuffer_Release(&view);
    return copied;
}

void program_release_call(Program *self) {
    for (int k = 0; k < self->call_view_count; k++) PyBuffer_Release(&self->call_views[k]);
    self->call_view_count = 0;
}

static void Program_dealloc(Program *self) {
    program_release_call(self);
    for (int k = 0; k < self->card_view_count; k++) PyBuffer_Release(&self->card_views[k]);
    for (int k = 0; k < MAX_STREAMS; k++) PyMem_Free((void *)self->p.records[k]);
    PyMem_Free((void *)self->p.regions);
    PyMem_Free((void *)self->p.groups);
    PyMem_Free(self->p.events);
    free(self->p.scratch);
    peer_memory_free(self->p.peers);
    told_free(self->p.told);
    if (self->p.pacing) PyMem_Free((void *)self->p.pacing->kernels);
    PyMem_Free(self->p.pacing);
    Py_XDECREF(self->memory);
    Py_XDECREF(self->pacer);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static int hold_cards(Program *self, PyObject *cards) {
    const int64_t extent_bytes = self->p.layout.extent_bytes;
    Py_ssize_t count = PySequence_Size(cards);
    if (count < 1 || count > MAX_CARDS) return RAISED(PyExc_ValueError, "a pool has 1 to %d cards", MAX_CARDS);
    for (Py_ssize_t k = 0; k < count; k++) {
        PyObject *card = PySequence_GetItem(cards, k);
        if (!card) return -1;
        Py_buffer *view = &self->card_views[k];
        int held = PyObject_GetBuffer(card, view, PyBUF_WRITABLE);
        Py_DECREF(card);
        if (held < 0) return -1;
        self->card_view_count++;
        self->card_pointers[k] = view->buf;
        if (self->p.base < 0 || extent_bytes < 0 || extent_bytes > view->len || self->p.base > view->len - extent_bytes)
            return RAISED(PyExc_ValueError, "card %zd ends before the communicator's extent does", k);
        if ((uintptr_t)self->card_pointers[k] % LINE_BYTES)
            return RAISED(PyExc_ValueError, "card %zd does not begin at a whole line", k);
    }
    self->p.cards = self->card_pointers;
    self->p.card_count = (int32_t)count;
    return 0;
}

static int copy_streams(Program *self, PyObject *streams) {
    Py_ssize_t count = PySequence_Size(streams);
    if (count < 0 || count > MAX_STREAMS) return RAISED(PyExc_ValueError, "a rank has at most %d streams", MAX_STREAMS);
    for (Py_ssize_t k = 0; k < count; k++) {
        PyObject *stream = PySequence_GetItem(streams, k);
        if (!stream) return -1;
        self->p.records[k] = copy(stream, sizeof(record), &self->p.lengths[k]);
        Py_DECREF(stream);
        if (!self->p.records[k]) return -1;
    }
    self->p.stream_count = (int32_t)count;
    return 0;
}

static int take_buffer_sizes(Program *self, PyObject *sizes) {
    Py_ssize_t count = PySequence_Size(sizes);
    if (count < 0 || count > MAX_BUFFERS) return RAISED(PyExc_ValueError, "a rank has at most %d buffers", MAX_BUFFERS);
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

/* Let the program access the cards through an emulated host's cache. Return 0, or -1 with an exception. */
static int go_through(Program *self, PyObject *memory) {
    shadow *through = shadow_of(memory);
    if (!through) return -1;
    if (through->card_count != self->p.card_count || self->p.base + self->p.layout.extent_bytes > through->card_bytes)
        return RAISED(PyExc_ValueError, "the memory is a cache of other cards");
    self->memory = Py_NewRef(memory);
    self->p.through = through;
    return 0;
}

/* Return whether the rank has a route to every doorbell that it polls or rings: some may lie in memories of other
 * ranks. */
static bool reaches_doorbells(const program *p, const pacer *its) {
    for (int32_t s = 0; s < p->stream_count; s++)
        for (int64_t k = 0; k < p->lengths[s]; k++) {
            const record *r = &p->records[s][k];
            const bool one = r->op == SIGNAL || r->op == SIGNAL_DATA || r->op == WAIT || r->op == WAIT_DATA;
            if (!one && r->op != WAIT_ALL) continue;
            const int32_t card = doorbell_place(p, one ? r->arg : p->groups[r->arg].first, 0).card;
            if (!route_to(&its->model, its->rank, its->card_of[card])) return false;
        }
    return true;
}

/* Let the program run at its rank's modelled pace. Return 0, or -1 with an exception. */
static int go_at(Program *self, PyObject *object, PyObject *kernels) {
    pacer *its = pace_pacer_of(object);
    if (!its) return -1;
    if (its->card_count != self->p.card_count || its->card_lines * LINE_BYTES > self->card_views[0].len)
        return RAISED(PyExc_ValueError, "the pace is that of other cards");
    if (!reaches_doorbells(&self->p, its))
        return RAISED(PyExc_ValueError, "a doorbell lies in a memory that the model has no way to");
    pacing *made = PyMem_Calloc(1, sizeof *made + (size_t)self->p.event_count * sizeof made->event_ns[0]);
    if (!made) {
        PyErr_NoMemory();
        return -1;
    }
    made->pacer = its, made->regions = (region_table){self->p.regions, self->p.region_count, its->card_of};
    if (kernels != Py_None && !(made->kernels = copy(kernels, sizeof(kernel_cost), &made->kernel_count))) {
        PyMem_Free(made);
        return -1;
    }
    self->pacer = Py_NewRef(object);
    self->p.pacing = made;
    bool right = !made->kernel_count || its->model.multiprocessors;
    for (int64_t k = 0; k < made->kernel_count; k++) right = right && kernel_cost_fits(&made->kernels[k]);
    if (!right)
        PyErr_SetString(PyExc_ValueError, "a kernel takes more than is modelled, or there is nothing to compute it");
    return right ? 0 : -1;
}

/* Let regions lie in the ranks' processes. peers: this rank, each rank's process as an int32, and each region's berth. Return
 * 0, or -1 with an exception. */
static int berth_in(Program *self, PyObject *peers) {
    int own;
    Py_buffer pids, berths;
    if (!PyArg_ParseTuple(peers, "iy*y*", &own, &pids, &berths)) return -1;
    const int32_t ranks = (int32_t)(pids.len / (Py_ssize_t)sizeof(int32_t));
    const bool right = ranks == self->p.layout.ranks && own >= 0 && own < ranks &&
                       self->p.buffer_count >= TOLD_BUFFERS &&
                       berths.len == self->p.region_count * (Py_ssize_t)sizeof(berth) && !self->p.through &&
                       (self->p.elides & STEPS) == STEPS;
    if (!right)
        PyErr_SetString(PyExc_ValueError,
                        "regions lie in the processes of all ranks, or all in the pool, on coherent memory");
    else if (!(self->p.peers = peer_memory_new(ranks, own, pids.buf, berths.buf, self->p.region_count)))
        PyErr_NoMemory();
    PyBuffer_Release(&pids), PyBuffer_Release(&berths);
    return self->p.peers ? 0 : -1;
}

static int Program_init(Program *self, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"cards",   "base",         "layout", "regions", "groups",
                            "streams", "buffer_bytes", "events", "elides",  "memory",
                            "pacer",   "kernels",      "peers",  "told",    NULL};
    PyObject *cards, *shape, *regions, *groups, *streams, *sizes, *memory, *its_pacer = Py_None, *kernels = Py_None,
                                                                           *peers = Py_None, *told = Py_None;
    long long base;
    int64_t region_count = 0, group_count = 0;
    if (self->card_view_count) return RAISED(PyExc_RuntimeError, "a Program is made once");
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OLOOOOOiIO|OOOO", names, &cards, &base, &shape, &regions, &groups,
                                     &streams, &sizes, &self->p.event_count, &self->p.elides, &memory, &its_pacer,
                                     &kernels, &peers, &told))
        return -1;
    self->p.base = base;
    if (layout_take(shape, &self->p.layout) < 0 || hold_cards(self, cards) < 0 || copy_streams(self, streams) < 0 ||
        take_buffer_sizes(self, sizes) < 0)
        return -1;
    if (memory != Py_None && go_through(self, memory) < 0) return -1;
    if (!(self->p.regions = copy(regions, sizeof(region), &region_count))) return -1;
    if (!(self->p.groups = copy(groups, sizeof(group), &group_count))) return -1;
    self->p.region_count = (int32_t)region_count, self->p.group_count = (int32_t)group_count;
    if (peers != Py_None && berth_in(self, peers) < 0) return -1;
    if (told != Py_None && told_take(told, &self->p) < 0) return -1;
    if (self->p.event_count < 0 || self->p.event_count > MAX_EVENTS ||
        !(self->p.events = PyMem_Calloc((size_t)self->p.event_count + 1, 1)))
        return RAISED(PyExc_ValueError, "no room for that many events");
    int32_t stream;
    int64_t at;
    if (!program_check(&self->p, &stream, &at)) {
        if (stream < 0) PyErr_SetString(PyExc_ValueError, "the plan's tables do not fit its layout");
        else PyErr_Format(PyExc_ValueError, "record %lld of stream %d is not valid", (long long)at, (int)stream);
        return -1;
    }
    if (its_pacer != Py_None && go_at(self, its_pacer, kernels) < 0) return -1;
    self->state = READY;
    return 0;
}

static int take_buffers(Program *self, PyObject *const *buffers) {
    for (int k = 0; k < self->p.buffer_count; k++) {
        int flags = self->p.written[k] ? PyBUF_WRITABLE : PyBUF_SIMPLE; /* inputs may be read-only */
        if (PyObject_GetBuffer(buffers[k], &self->call_views[k], flags) < 0) return -1;
        self->call_view_count++;
        if (self->call_views[k].len < self->p.buffer_bytes[k])
            return RAISED(PyExc_ValueError, "buffer %d has %zd bytes, the plan needs %lld", k, self->call_views[k].len,
                          (long long)self->p.buffer_bytes[k]);
        self->p.buffers[k] = self->call_views[k].buf;
    }
    return 0;
}

/* Take a call's epoch, tag and buffers, and begin it. Return 0, or -1 with an exception; buffers that were taken until
 * then are in call_views, and the caller releases them. */
static int take_call(Program *self, PyObject *const *args) {
    long long epoch = PyLong_AsLongLong(args[0]);
    if (PyErr_Occurred()) return -1;
    unsigned long tag = PyLong_AsUnsignedLong(args[1]);
    if (PyErr_Occurred()) return -1;
    if (epoch < 0 || epoch >> EPOCH_BITS || tag >> TAG_BITS)
        return RAISED(PyExc_ValueError, "the epoch or the tag is out of range");
    if (take_buffers(self, args + 2) < 0) return -1;
    self->p.done_seen = NULL; /* another communicator may have used the program's place before */
    program_begin(&self->p, epoch, (uint16_t)tag);
    return 0;
}

/* start(epoch, tag, *buffers): begin a call. It holds the buffers until it is done or another call begins. */
static PyObject *Program_start(Program *self, PyObject *const *args, Py_ssize_t count) {
    if (self->state == UNBOUND || self->state == BUSY)
        return PyErr_Format(PyExc_RuntimeError, "the program was never made, or it runs in another thread");
    if (count != 2 + self->p.buffer_count)
        return PyErr_Format(PyExc_TypeError, "start takes an epoch, a tag and %d buffers", (int)self->p.buffer_count);
    program_release_call(self);
    self->state = BUSY;
    int taken = take_call(self, args);
    self->state = taken < 0 ? READY : STARTED;
    if (taken < 0) {
        program_release_call(self);
        return NULL;
    }
    Py_RETURN_NONE;
}

/* go_on_with(*buffers): the call under way continues on copies of its buffers. It may have ended before Python knows: see
 * several.c. */
static PyObject *Program_go_on_with(Program *self, PyObject *const *args, Py_ssize_t count) {
    if (self->state == READY) Py_RETURN_NONE;
    if (self->state != STARTED || count != self->p.buffer_count)
        return PyErr_Format(PyExc_RuntimeError, "no call was started, or it has other buffers");
    program_release_call(self);
    if (take_buffers(self, args) == 0) Py_RETURN_NONE;
    program_release_call(self);
    self->state = READY;
    return NULL;
}

PyObject *program_obstacle_list(const obstacle *found, int count) {
    PyObject *list = PyList_New(count);
    for (int k = 0; list && k < count; k++) {
        PyObject *one = Py_BuildValue("(iLiLL)", (int)found[k].stream, (long long)found[k].at, (int)found[k].doorbell,
                                      (long long)found[k].wanted, (long long)found[k].shows);
        if (!one) Py_CLEAR(list);
        else PyList_SET_ITEM(list, k, one);
    }
    return list;
}

/* advance(idle_ns, spins) -> (status, [(stream, at, doorbell, wanted, shows), ...]): see program_run */
static PyObject *Program_advance(Program *self, PyObject *const *args, Py_ssize_t count) {
    if (count != 2) return PyErr_Format(PyExc_TypeError, "advance takes idle_ns and spins");
    long long idle_ns = PyLong_AsLongLong(args[0]), spins = PyLong_AsLongLong(args[1]);
    if (PyErr_Occurred()) return NULL;
    if (self->state != STARTED)
        return PyErr_Format(PyExc_RuntimeError, "no call was started, or it runs in another thread");
    obstacle found[MAX_STREAMS];
    int waiting = 0;
    enum status status;
    self->state = BUSY;
    Py_BEGIN_ALLOW_THREADS
    status = program_run(&self->p, idle_ns, spins, found, &waiting);
    Py_END_ALLOW_THREADS
    self->state = status == DONE ? READY : STARTED;
    if (status == DONE) program_release_call(self);
    PyObject *list = program_obstacle_list(found, waiting);
    return list ? Py_BuildValue("(iN)", (int)status, list) : NULL;
}

/* skip(stream): go on behind the stream's record, a COMPUTE that the caller has executed. */
static PyObject *Program_skip(Program *self, PyObject *argument) {
    long stream = PyLong_AsLong(argument);
    if (PyErr_Occurred()) return NULL;
    if (self->state != STARTED || stream < 0 || stream >= self->p.stream_count ||
        self->p.position[stream] >= self->p.lengths[stream])
        return PyErr_Format(PyExc_RuntimeError, "there is no record to skip");
    program_skip(&self->p, (int32_t)stream);
    Py_RETURN_NONE;
}

/* stop(stream, at): let advance end with STOPPED before record `at` of this call. A stop at the stream's end has no
 * effect. */
static PyObject *Program_stop(Program *self, PyObject *const *args, Py_ssize_t count) {
    if (count != 2) return PyErr_Format(PyExc_TypeError, "stop takes a stream and a record");
    const long stream = PyLong_AsLong(args[0]);
    const long long at = PyErr_Occurred() ? 0 : PyLong_AsLongLong(args[1]);
    if (PyErr_Occurred()) return NULL;
    if (self->state != STARTED || stream < 0 || stream >= self->p.stream_count || at < self->p.position[stream] ||
        at > self->p.lengths[stream])
        return PyErr_Format(PyExc_RuntimeError, "there is no such record to come");
    self->p.stops[stream] = at;
    Py_RETURN_NONE;
}

/* modelled_ns(stream) -> when its next record may begin, in ns of this machine's monotonic clock; None without a
 * pace. */
static PyObject *Program_modelled_ns(Program *self, PyObject *argument) {
    const long stream = PyLong_AsLong(argument);
    if (PyErr_Occurred()) return NULL;
    if (stream < 0 || stream >= self->p.stream_count)
        return PyErr_Format(PyExc_IndexError, "there is no stream %ld", stream);
    const pacing *its = self->p.pacing;
    if (!its) Py_RETURN_NONE;
    return PyLong_FromLongLong((long long)((double)its->streams[stream].now * its->pacer->time_scale));
}

static PyMethodDef program_methods[] = {
    {"start", FAST(Program_start), NULL},
    {"advance", FAST(Program_advance), NULL},
    {"go_on_with", FAST(Program_go_on_with), NULL},
    {"skip", (PyCFunction)Program_skip, METH_O, NULL},
    {"modelled_ns", (PyCFunction)Program_modelled_ns, METH_O, NULL},
    {"stop", FAST(Program_stop), NULL},
    {NULL, NULL, 0, NULL},
};

static PyObject *Program_executed(PyObject *self, void *closure) {
    (void)closure;
    const program *p = &((Program *)self)->p;
    int64_t sum = 0;
    for (int32_t s = 0; s < p->stream_count; s++) sum += p->position[s];
    return PyLong_FromLongLong(sum);
}

static PyGetSetDef program_computed[] = {
    {"executed", Program_executed, NULL, "how many records of the call were executed, in all streams", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMemberDef program_members[] = {
    {"work_bytes", T_LONGLONG, offsetof(Program, p.work_bytes), READONLY,
     "of all records together; no more is counted once a call counts as large"},
    {NULL, 0, 0, 0, NULL},
};

PyTypeObject program_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "cxlemu._native.Program",
    .tp_doc = "A rank's part of a plan, bound to the cards of a pool.",
    .tp_basicsize = sizeof(Program),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = PyType_GenericNew,
    .tp_init = (initproc)Program_init,
    .tp_dealloc = (destructor)Program_dealloc,
    .tp_members = program_members,
    .tp_getset = program_computed,
    .tp_methods = program_methods,
};
