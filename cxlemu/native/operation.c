/* Python's type Operation: a call that is ready to run repeatedly, without Python in between. */
#include "python.h"

#include <structmember.h>

enum { LOOKS_IN_STEP = 100 };

/* The caller has checked that the buffers are as long as the plan needs. */
PyObject *operation_run(Operation *self, uint8_t *input, uint8_t *output, PyObject *result) {
    Sequencer *sequencer = self->sequencer;
    program *p = &self->program->p;
    if (sequencer->busy || self->program->state == BUSY)
        return PyErr_Format(PyExc_RuntimeError, "this communicator is in a call in another thread");
    int64_t epoch;
    uint16_t tag;
    sequencer_begin(sequencer, self->rounds, self->digest, &epoch, &tag);
    p->buffers[INPUT] = input, p->buffers[OUTPUT] = output, p->buffers[SCRATCH] = self->views[SCRATCH].buf;
    p->done_seen = p->through ? NULL : sequencer->done_seen; /* an emulated cache sees every look */
    program_begin(p, epoch, tag);
    obstacle found[MAX_STREAMS];
    int waiting = 0;
    enum status status;
    sequencer->busy = true, self->program->state = BUSY;
    /* Keep the GIL for a small call whose peers are in step: it ends sooner than another thread could begin. */
    status = IDLE;
    if (p->work_bytes <= SMALL_WORK_BYTES && !p->through && !p->pacing)
        status = program_run(p, 0, sequencer->spins ? LOOKS_IN_STEP : 0, found, &waiting);
    if (status == IDLE) {
        Py_BEGIN_ALLOW_THREADS
        status = program_run(p, sequencer->idle_ns, sequencer->spins, found, &waiting);
        Py_END_ALLOW_THREADS
    }
    self->program->state = status == DONE ? READY : STARTED;
    if (status != DONE) {
        PyObject *list = program_obstacle_list(found, waiting), *finished = NULL;
        if (list)
            finished = PyObject_CallFunction(sequencer->hooks[RESUME], "OLIOiN", self->cookie, (long long)epoch,
                                             (unsigned int)tag, (PyObject *)self->program, (int)status, list);
        Py_XDECREF(finished);
        if (!finished) result = NULL;
    }
    sequencer->busy = false;
    return Py_XNewRef(result);
}

static PyObject *Operation_run(Operation *self, PyObject *Py_UNUSED(none)) {
    if (!self->views[INPUT].obj || !self->views[OUTPUT].obj)
        return PyErr_Format(PyExc_RuntimeError, "this operation has no arrays of its own");
    return operation_run(self, self->views[INPUT].buf, self->views[OUTPUT].buf, self->result);
}

static PyObject *Operation_call(PyObject *callable, PyObject *const *args, size_t count, PyObject *names) {
    Operation *self = (Operation *)callable;
    (void)args;
    if (PyVectorcall_NARGS(count) || names)
        return PyErr_Format(PyExc_TypeError,
                            "an operation is called without arguments: they were given when it was made");
    if (sequencer_is_closed(self->sequencer)) return PyObject_CallOneArg(self->sequencer->hooks[RUN_IN_TURN], callable);
    return Operation_run(self, NULL);
}

static int Operation_init(Operation *self, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"sequencer", "program", "rounds", "digest",  "cookie",
                            "result",    "input",   "output", "scratch", NULL};
    PyObject *sequencer, *prog, *cookie, *result, *buffers[CALL_BUFFERS];
    if (self->sequencer) return RAISED(PyExc_RuntimeError, "an Operation is made once");
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!O!LHOOOOO", names, &sequencer_type, &sequencer, &program_type,
                                     &prog, &self->rounds, &self->digest, &cookie, &result, &buffers[INPUT],
                                     &buffers[OUTPUT], &buffers[SCRATCH]))
        return -1;
    const program *p = &((Program *)prog)->p;
    if (((Program *)prog)->state == UNBOUND || p->buffer_count != CALL_BUFFERS ||
        p->layout.ranks != ((Sequencer *)sequencer)->ranks)
        return RAISED(PyExc_ValueError,
                      "a call's program is of the sequencer's ranks, and has an input, an output and scratch memory");
    for (int k = 0; k < CALL_BUFFERS; k++) {
        if (k != SCRATCH && buffers[k] == Py_None) { /* calls bring it */
            self->view_count++;
            continue;
        }
        if (PyObject_GetBuffer(buffers[k], &self->views[k], p->written[k] ? PyBUF_WRITABLE : PyBUF_SIMPLE) < 0)
            return -1;
        self->view_count++;
        if (self->views[k].len < p->buffer_bytes[k])
            return RAISED(PyExc_ValueError, "buffer %d has %zd bytes, the plan needs %lld", k, self->views[k].len,
                          (long long)p->buffer_bytes[k]);
    }
    self->sequencer = (Sequencer *)Py_NewRef(sequencer), self->program = (Program *)Py_NewRef(prog);
    self->cookie = Py_NewRef(cookie), self->result = Py_NewRef(result);
    self->call = Operation_call;
    return 0;
}

PyObject *operation_on(const Operation *like, PyObject *x, PyObject *out, uint8_t *input, uint8_t *output) {
    Operation *self = (Operation *)operation_type.tp_alloc(&operation_type, 0);
    if (!self) return NULL;
    PyObject *owners[CALL_BUFFERS] = {x, out, (PyObject *)like};
    uint8_t *starts[CALL_BUFFERS] = {input, output, like->views[SCRATCH].buf};
    self->sequencer = (Sequencer *)Py_NewRef(like->sequencer), self->program = (Program *)Py_NewRef(like->program);
    self->rounds = like->rounds, self->digest = like->digest;
    self->cookie = Py_NewRef(like->cookie), self->result = Py_NewRef(out);
    self->call = Operation_call;
    for (int k = 0; k < CALL_BUFFERS; k++, self->view_count++) {
        const int64_t bytes = like->program->p.buffer_bytes[k];
        if (PyBuffer_FillInfo(&self->views[k], owners[k], starts[k], bytes, 0, PyBUF_SIMPLE) < 0) {
            Py_DECREF(self);
            return NULL;
        }
    }
    return (PyObject *)self;
}

static int Operation_traverse(Operation *self, visitproc visit, void *arg) {
    Py_VISIT(self->sequencer);
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
    Py_XDECREF(self->sequencer);
    Py_XDECREF(self->program);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyObject *Operation_repr(Operation *self) {
    if (!self->cookie) return PyUnicode_FromString("<Operation>");
    PyObject *call = PyObject_GetAttrString(self->cookie, "call");
    if (!call) PyErr_Clear(), call = Py_NewRef(self->cookie); /* a cookie may be anything */
    PyObject *said = PyUnicode_FromFormat("<Operation [%S]>", call);
    Py_DECREF(call);
    return said;
}

static PyMethodDef operation_methods[] = {
    {"run", (PyCFunction)Operation_run, METH_NOARGS,
     "run(): call now, whatever is pending: the operation's turn has come."},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef operation_members[] = {
    {"cookie", T_OBJECT_EX, offsetof(Operation, cookie), READONLY, "whose call this is"},
    {"program", T_OBJECT_EX, offsetof(Operation, program), READONLY, "what runs"},
    {NULL, 0, 0, 0, NULL},
};

PyTypeObject operation_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "cxlemu._native.Operation",
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
    .tp_repr = (reprfunc)Operation_repr,
    .tp_methods = operation_methods,
    .tp_members = operation_members,
};
