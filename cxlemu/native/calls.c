/* Calls without Python in between. A Ring counts a communicator's rounds and calls; an Operation is a call that is ready
 * to run again and again; Calls finds the Operation for the arguments of an ordinary call. What is rare (waiting for
 * long, errors, calls not seen before) is left to Python: resume, turn and miss are its functions. */
#include "python.h"

#define NPY_NO_DEPRECATED_API NPY_2_0_API_VERSION
#include <numpy/arrayobject.h>
#include <structmember.h>

enum { INPUT, OUTPUT, SCRATCH, CALL_BUFFERS };
enum { LOOKS_IN_STEP = 100 };
enum { TAG_FACTOR = 40503 }; /* odd: after equal calls, tags that differed differ still */

/* --- Ring ------------------------------------------------------------------------------------------------------- */

typedef struct {
    PyObject_HEAD
    long long epoch, calls;  /* of the next round; of calls begun */
    unsigned int tag;        /* of the calls so far */
    int revoked;
    bool busy;
    long long idle_ns, spins;
    int64_t *done_seen; /* of each rank */
    int ranks;
    Py_buffer gate; /* a byte, not 0: calls are to go by way of turn */
    PyObject *resume; /* resume(cookie, epoch, tag, program, status, obstacles): finish what does not end at once */
    PyObject *turn;   /* turn(operation): the operation's result, when its turn has come */
} Ring;

static int Ring_init(Ring *self, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"ranks", "epoch", "tag", "idle_ns", "spins", "gate", "resume", "turn", NULL};
    PyObject *resume, *turn;
    if (self->gate.obj) {
        PyErr_SetString(PyExc_RuntimeError, "a Ring is made once");
        return -1;
    }
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "iLILLy*OO", names, &self->ranks, &self->epoch, &self->tag, &self->idle_ns,
                                     &self->spins, &self->gate, &resume, &turn))
        return -1;
    if (self->gate.len != 1 || self->ranks < 1) {
        PyErr_SetString(PyExc_ValueError, "a gate is one byte, and a communicator has a rank");
        return -1;
    }
    if (!(self->done_seen = PyMem_Calloc((size_t)self->ranks, sizeof *self->done_seen))) {
        PyErr_NoMemory();
        return -1;
    }
    Py_XSETREF(self->resume, Py_NewRef(resume));
    Py_XSETREF(self->turn, Py_NewRef(turn));
    return 0;
}

static int Ring_traverse(Ring *self, visitproc visit, void *arg) {
    Py_VISIT(self->resume);
    Py_VISIT(self->turn);
    return 0;
}

static int Ring_clear(Ring *self) {
    Py_CLEAR(self->resume);
    Py_CLEAR(self->turn);
    return 0;
}

static void Ring_dealloc(Ring *self) {
    PyObject_GC_UnTrack(self);
    Ring_clear(self);
    if (self->gate.obj) PyBuffer_Release(&self->gate);
    PyMem_Free(self->done_seen);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static bool closed(const Ring *self) { return self->revoked || *(const volatile char *)self->gate.buf; }

static void count_call(Ring *self, int64_t rounds, uint16_t digest, int64_t *epoch, uint16_t *tag) {
    *epoch = self->epoch;
    *tag = (uint16_t)(self->tag = (self->tag * (unsigned)TAG_FACTOR + digest) & ((1u << TAG_BITS) - 1));
    self->epoch += rounds;
    self->calls++;
}

/* begin(rounds, digest) -> (epoch, tag) of a call that begins now */
static PyObject *Ring_begin(Ring *self, PyObject *args) {
    long long rounds;
    unsigned short digest;
    int64_t epoch;
    uint16_t tag;
    if (!PyArg_ParseTuple(args, "LH", &rounds, &digest)) return NULL;
    count_call(self, rounds, digest, &epoch, &tag);
    return Py_BuildValue("(LI)", (long long)epoch, (unsigned int)tag);
}

static PyMethodDef ring_methods[] = {
    {"begin", (PyCFunction)Ring_begin, METH_VARARGS, "begin(rounds, digest) -> (epoch, tag) of a call that begins now."},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef ring_members[] = {
    {"epoch", T_LONGLONG, offsetof(Ring, epoch), READONLY, "of the next round"},
    {"calls", T_LONGLONG, offsetof(Ring, calls), READONLY, "begun so far"},
    {"tag", T_UINT, offsetof(Ring, tag), READONLY, "of the calls so far"},
    {"spins", T_LONGLONG, offsetof(Ring, spins), 0, "looks at doorbells before the core is given away"},
    {"revoked", T_INT, offsetof(Ring, revoked), 0, "not 0: every call goes by way of turn, which refuses it"},
    {NULL, 0, 0, 0, NULL},
};

PyTypeObject RingType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "cxlemu._native.Ring",
    .tp_doc = "What goes on across a communicator's calls: its rounds, and a tag of what was called.",
    .tp_basicsize = sizeof(Ring),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = PyType_GenericNew,
    .tp_init = (initproc)Ring_init,
    .tp_traverse = (traverseproc)Ring_traverse,
    .tp_clear = (inquiry)Ring_clear,
    .tp_dealloc = (destructor)Ring_dealloc,
    .tp_methods = ring_methods,
    .tp_members = ring_members,
};

/* --- Operation -------------------------------------------------------------------------------------------------- */

typedef struct {
    PyObject_HEAD
    vectorcallfunc call;
    Ring *ring;
    Program *program;
    long long rounds;
    unsigned short digest;
    PyObject *cookie; /* what resume gets: whose call this is */
    PyObject *result; /* what a call returns */
    Py_buffer views[CALL_BUFFERS]; /* held as long as the operation lives */
    int view_count;
} Operation;

static PyObject *refuse(const char *why) {
    PyErr_SetString(PyExc_RuntimeError, why);
    return NULL;
}

/* The arguments were checked: the buffers are as long as the plan says. */
static PyObject *run_now(Operation *self, uint8_t *input, uint8_t *output, PyObject *result) {
    Ring *ring = self->ring;
    program *p = &self->program->p;
    if (ring->busy || self->program->state == BUSY) return refuse("this communicator is in a call in another thread");
    int64_t epoch;
    uint16_t tag;
    count_call(ring, self->rounds, self->digest, &epoch, &tag);
    p->buffers[INPUT] = input, p->buffers[OUTPUT] = output, p->buffers[SCRATCH] = self->views[SCRATCH].buf;
    p->done_seen = p->through ? NULL : ring->done_seen; /* an emulated cache sees every look */
    program_begin(p, epoch, tag);
    obstacle found[MAX_STREAMS];
    int waiting = 0;
    enum status status;
    ring->busy = true, self->program->state = BUSY;
    /* A small call whose peers are in step is over sooner than other threads could begin. */
    status = IDLE;
    if (p->work_bytes <= SMALL_WORK_BYTES && !p->through) status = program_run(p, 0, ring->spins ? LOOKS_IN_STEP : 0, found, &waiting);
    if (status == IDLE) {
        Py_BEGIN_ALLOW_THREADS
        status = program_run(p, ring->idle_ns, ring->spins, found, &waiting);
        Py_END_ALLOW_THREADS
    }
    self->program->state = status == DONE ? READY : STARTED;
    if (status != DONE) {
        PyObject *list = obstacle_list(found, waiting), *finished = NULL;
        if (list)
            finished = PyObject_CallFunction(ring->resume, "OLIOiN", self->cookie, (long long)epoch, (unsigned int)tag,
                                             (PyObject *)self->program, (int)status, list);
        Py_XDECREF(finished);
        if (!finished) result = NULL;
    }
    ring->busy = false;
    return Py_XNewRef(result);
}

static PyObject *Operation_run(Operation *self, PyObject *Py_UNUSED(none)) {
    return run_now(self, self->views[INPUT].buf, self->views[OUTPUT].buf, self->result);
}

static PyObject *Operation_call(PyObject *callable, PyObject *const *args, size_t count, PyObject *names) {
    Operation *self = (Operation *)callable;
    (void)args;
    if (PyVectorcall_NARGS(count) || names) {
        PyErr_SetString(PyExc_TypeError, "an operation is called without arguments: they were given when it was made");
        return NULL;
    }
    if (closed(self->ring)) return PyObject_CallOneArg(self->ring->turn, callable);
    return Operation_run(self, NULL);
}

static int Operation_init(Operation *self, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"ring", "program", "rounds", "digest", "cookie", "result", "input", "output",
                            "scratch", NULL};
    PyObject *ring, *prog, *cookie, *result, *buffers[CALL_BUFFERS];
    if (self->ring) {
        PyErr_SetString(PyExc_RuntimeError, "an Operation is made once");
        return -1;
    }
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!O!LHOOOOO", names, &RingType, &ring, &ProgramType, &prog,
                                     &self->rounds, &self->digest, &cookie, &result, &buffers[INPUT], &buffers[OUTPUT],
                                     &buffers[SCRATCH]))
        return -1;
    const program *p = &((Program *)prog)->p;
    if (((Program *)prog)->state == UNBOUND || p->buffer_count != CALL_BUFFERS || p->ranks != ((Ring *)ring)->ranks) {
        PyErr_SetString(PyExc_ValueError, "a call's program is of the ring's ranks, and has an input, an output and scratch memory");
        return -1;
    }
    for (int k = 0; k < CALL_BUFFERS; k++) {
        if (PyObject_GetBuffer(buffers[k], &self->views[k], p->written[k] ? PyBUF_WRITABLE : PyBUF_SIMPLE) < 0) return -1;
        self->view_count++;
        if (self->views[k].len < p->buffer_bytes[k]) {
            PyErr_Format(PyExc_ValueError, "buffer %d has %zd bytes, the plan needs %lld", k, self->views[k].len,
                         (long long)p->buffer_bytes[k]);
            return -1;
        }
    }
    self->ring = (Ring *)Py_NewRef(ring), self->program = (Program *)Py_NewRef(prog);
    self->cookie = Py_NewRef(cookie), self->result = Py_NewRef(result);
    self->call = Operation_call;
    return 0;
}

static int Operation_traverse(Operation *self, visitproc visit, void *arg) {
    Py_VISIT(self->ring);
    Py_VISIT(self->program);
    Py_VISIT(self->cookie);
    Py_VISIT(self->result);
    return 0;
}

static int Operation_clear(Operation *self) {
    Py_CLEAR(self->cookie);
    Py_CLEAR(self->result);
    return 0;
}

static void Operation_dealloc(Operation *self) {
    PyObject_GC_UnTrack(self);
    Operation_clear(self);
    for (int k = 0; k < self->view_count; k++) PyBuffer_Release(&self->views[k]);
    Py_XDECREF(self->ring);
    Py_XDECREF(self->program);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyMethodDef operation_methods[] = {
    {"run", (PyCFunction)Operation_run, METH_NOARGS, "run(): call, though the ring is closed: its turn has come."},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef operation_members[] = {
    {"cookie", T_OBJECT_EX, offsetof(Operation, cookie), READONLY, "whose call this is"},
    {NULL, 0, 0, 0, NULL},
};

PyTypeObject OperationType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "cxlemu._native.Operation",
    .tp_doc = "A collective call that is ready to run again and again, on the same arrays.",
    .tp_basicsize = sizeof(Operation),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_vectorcall_offset = offsetof(Operation, call),
    .tp_call = PyVectorcall_Call,
    .tp_new = PyType_GenericNew,
    .tp_init = (initproc)Operation_init,
    .tp_traverse = (traverseproc)Operation_traverse,
    .tp_clear = (inquiry)Operation_clear,
    .tp_dealloc = (destructor)Operation_dealloc,
    .tp_methods = operation_methods,
    .tp_members = operation_members,
};

/* --- Calls ------------------------------------------------------------------------------------------------------ */

enum { ENTRIES = 256 };

/* An array as far as a call depends on it. nbytes is -1 where there is none. */
typedef struct {
    npy_intp nbytes;
    PyArray_Descr *dtype;
} shape;

typedef struct {
    PyObject *collective, *redop, *root, *variant; /* compared by identity: equal but not the same is a miss */
    shape x, out;     /* dtypes by identity, too */
    bool overlap;
    int64_t distance; /* of x from out, where they overlap */
    Operation *operation;
} entry;

typedef struct {
    PyObject_HEAD
    vectorcallfunc call;
    PyObject *miss; /* miss(*arguments): an ordinary call, which may remember an operation */
    Py_buffer heap; /* calls depend on where in it their arrays lie, so those are never found here */
    entry entries[ENTRIES];
} Calls;

/* False for what cannot be compared here: Python says in a sentence what is wrong with it, or does with it. */
static bool look_at(PyObject *object, bool written, shape *s, uint8_t **at) {
    s->nbytes = -1, s->dtype = NULL, *at = NULL;
    if (object == Py_None) return true;
    if (!PyArray_CheckExact(object)) return false;
    PyArrayObject *array = (PyArrayObject *)object;
    if (!PyArray_IS_C_CONTIGUOUS(array) || (written && !PyArray_ISWRITEABLE(array))) return false;
    s->nbytes = PyArray_NBYTES(array), s->dtype = PyArray_DESCR(array), *at = PyArray_DATA(array);
    return true;
}

static bool lies_in(const uint8_t *at, const Py_buffer *heap) {
    return (uintptr_t)at - (uintptr_t)heap->buf < (uintptr_t)heap->len;
}

static bool same(const shape *a, const shape *b) { return a->nbytes == b->nbytes && a->dtype == b->dtype; }

static size_t entry_of(PyObject *collective, PyObject *redop, const shape *x, const shape *out) {
    uint64_t key = (uint64_t)(uintptr_t)collective >> 4;
    key = key * 31 + ((uint64_t)(uintptr_t)redop >> 4);
    key = key * 31 + (uint64_t)x->nbytes;
    key = key * 31 + (uint64_t)out->nbytes;
    return (key * 0x9E3779B97F4A7C15u) >> 56;
}

/* What a call brings. */
typedef struct {
    shape x, out;
    uint8_t *input, *output;
    bool overlap;
    int64_t distance;
} arrays;

static bool look_at_arrays(const Py_buffer *heap, PyObject *x, PyObject *out, arrays *a) {
    if (!look_at(out, true, &a->out, &a->output) || !look_at(x, false, &a->x, &a->input)) return false;
    if (lies_in(a->input, heap) || lies_in(a->output, heap)) return false;
    const int64_t distance = (int64_t)((uintptr_t)a->input - (uintptr_t)a->output);
    a->overlap = distance < a->out.nbytes && -distance < a->x.nbytes;
    a->distance = a->overlap ? distance : 0;
    return true;
}

bool calls_find(PyObject *calls, PyObject *const *call, PyObject **result) {
    Calls *self = (Calls *)calls;
    arrays a;
    if (call[ASYNC] != Py_False || !look_at_arrays(&self->heap, call[X], call[OUT], &a)) return false;
    entry *e = &self->entries[entry_of(call[COLLECTIVE], call[REDOP], &a.x, &a.out)];
    if (!e->operation || e->collective != call[COLLECTIVE] || e->redop != call[REDOP] || e->root != call[ROOT] ||
        e->variant != call[VARIANT] || !same(&e->x, &a.x) || !same(&e->out, &a.out) || e->overlap != a.overlap ||
        e->distance != a.distance || closed(e->operation->ring))
        return false;
    Operation *operation = (Operation *)Py_NewRef(e->operation); /* should the entry go while it runs */
    *result = run_now(operation, a.input, a.output, call[OUT]);
    Py_DECREF(operation);
    return true;
}

static PyObject *Calls_call(PyObject *callable, PyObject *const *args, size_t nargsf, PyObject *names) {
    const Py_ssize_t count = PyVectorcall_NARGS(nargsf);
    PyObject *result;
    if (count == ARGUMENTS && !names && calls_find(callable, args, &result)) return result;
    return PyObject_Vectorcall(((Calls *)callable)->miss, args, (size_t)count, names);
}

static void forget(entry *e) {
    Py_CLEAR(e->collective);
    Py_CLEAR(e->redop);
    Py_CLEAR(e->root);
    Py_CLEAR(e->variant);
    Py_CLEAR(e->operation);
    Py_CLEAR(e->x.dtype);
    Py_CLEAR(e->out.dtype);
}

/* remember(operation, collective, x, out, op, root, variant): calls with such arguments run the operation's program, on
 * the arrays they bring. An operation's own arrays have the lengths that its program needs, so like ones have, too. */
static PyObject *Calls_remember(Calls *self, PyObject *const *args, Py_ssize_t count) {
    arrays a;
    if (count != ARGUMENTS || !PyObject_TypeCheck(args[0], &OperationType)) {
        PyErr_SetString(PyExc_TypeError, "remember takes an operation and six arguments of its call");
        return NULL;
    }
    Operation *operation = (Operation *)args[0];
    PyObject *const *call = args + 1;
    if (!look_at_arrays(&self->heap, call[X], call[OUT], &a)) Py_RETURN_FALSE;
    const int64_t *need = operation->program->p.buffer_bytes;
    if ((need[INPUT] && a.x.nbytes < need[INPUT]) || (need[OUTPUT] && a.out.nbytes < need[OUTPUT])) Py_RETURN_FALSE;
    entry *e = &self->entries[entry_of(call[COLLECTIVE], call[REDOP], &a.x, &a.out)];
    forget(e);
    e->collective = Py_NewRef(call[COLLECTIVE]), e->redop = Py_NewRef(call[REDOP]);
    e->root = Py_NewRef(call[ROOT]), e->variant = Py_NewRef(call[VARIANT]);
    Py_XINCREF(a.x.dtype);
    Py_XINCREF(a.out.dtype);
    e->x = a.x, e->out = a.out, e->overlap = a.overlap, e->distance = a.distance;
    e->operation = (Operation *)Py_NewRef(operation);
    Py_RETURN_TRUE;
}

static int Calls_init(Calls *self, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"miss", "heap", NULL};
    PyObject *miss;
    if (self->heap.obj) {
        PyErr_SetString(PyExc_RuntimeError, "Calls are made once");
        return -1;
    }
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "Oy*", names, &miss, &self->heap)) return -1;
    Py_XSETREF(self->miss, Py_NewRef(miss));
    self->call = Calls_call;
    return 0;
}

static int Calls_traverse(Calls *self, visitproc visit, void *arg) {
    Py_VISIT(self->miss);
    for (int k = 0; k < ENTRIES; k++) {
        Py_VISIT(self->entries[k].operation);
        Py_VISIT(self->entries[k].variant);
    }
    return 0;
}

static int Calls_clear(Calls *self) {
    Py_CLEAR(self->miss);
    for (int k = 0; k < ENTRIES; k++) forget(&self->entries[k]);
    return 0;
}

static void Calls_dealloc(Calls *self) {
    PyObject_GC_UnTrack(self);
    Calls_clear(self);
    if (self->heap.obj) PyBuffer_Release(&self->heap);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyMethodDef calls_methods[] = {
    {"remember", (PyCFunction)(void (*)(void))Calls_remember, METH_FASTCALL,
     "remember(operation, collective, x, out, op, root, variant) -> bool: such calls run the operation's program."},
    {NULL, NULL, 0, NULL},
};

int import_numpy(void) { return PyArray_ImportNumPyAPI(); }

PyTypeObject CallsType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "cxlemu._native.Calls",
    .tp_doc = "Collective calls by their arguments: calls(collective, x, out, op, root, variant, async_op).",
    .tp_basicsize = sizeof(Calls),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_vectorcall_offset = offsetof(Calls, call),
    .tp_call = PyVectorcall_Call,
    .tp_new = PyType_GenericNew,
    .tp_init = (initproc)Calls_init,
    .tp_traverse = (traverseproc)Calls_traverse,
    .tp_clear = (inquiry)Calls_clear,
    .tp_dealloc = (destructor)Calls_dealloc,
    .tp_methods = calls_methods,
};
