/* A Sequencer numbers a communicator's rounds and calls, and knows the Python object that does what C leaves to it. That
 * object, the hooks, has three methods. This is the way of a call:
 *
 *     comm.all_reduce(x)                     op = comm.persistent.all_reduce(x); op()
 *             |                                              |
 *        a like call is in the DispatchCache,           not closed?
 *        and the sequencer is not closed?                |       |
 *          |                |                           yes      no
 *         yes               no                           |       |
 *          |                |                            |   run_in_turn(operation): waits for calls ahead, or raises
 *          |       slow_path(arguments): plans           |       |
 *          |       an operation and calls it             |   operation.run()
 *          |                '--------> op()              |       |
 *          '-----------------------+---------------------'-------'
 *                                  v
 *         begun: the sequencer gives an epoch and a tag, the program starts
 *                                  v
 *         running, without the GIL ----- it ends -----------------------> done: the call's result
 *                                  |                                        ^
 *         idle for idle_ns, at a kernel, or an error                        |
 *                                  v                                        |
 *         resume(cookie, epoch, tag, program, status, obstacles) -- returns-'
 *                                  |
 *                                  '-- raises: the error is the call's, and the communicator is revoked
 *
 * Closed is a sequencer whose communicator is revoked or out of epochs, or with an asynchronous call ahead (`pending`). */
#include "python.h"

#include <structmember.h>

enum { TAG_FACTOR = 40503 }; /* odd: tags that differ stay different after equal calls */

static int Sequencer_init(Sequencer *self, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"ranks", "epoch", "tag", "idle_ns", "spins", "pending", "hooks", NULL};
    static const char *const methods[HOOKS] = {"slow_path", "resume", "run_in_turn"};
    PyObject *hooks;
    if (self->pending.obj) return RAISED(PyExc_RuntimeError, "a Sequencer is made once");
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "iLILLy*O", names, &self->ranks, &self->epoch, &self->tag,
                                     &self->idle_ns, &self->spins, &self->pending, &hooks))
        return -1;
    if (self->pending.len != 1 || self->ranks < 1)
        return RAISED(PyExc_ValueError, "pending is one byte, and a communicator has a rank");
    if (!(self->done_seen = PyMem_Calloc((size_t)self->ranks, sizeof *self->done_seen))) {
        PyErr_NoMemory();
        return -1;
    }
    for (int k = 0; k < HOOKS; k++)
        if (!(self->hooks[k] = PyObject_GetAttrString(hooks, methods[k]))) return -1;
    return 0;
}

static int Sequencer_traverse(Sequencer *self, visitproc visit, void *arg) {
    for (int k = 0; k < HOOKS; k++) Py_VISIT(self->hooks[k]);
    return 0;
}

static int Sequencer_clear(Sequencer *self) {
    for (int k = 0; k < HOOKS; k++) Py_CLEAR(self->hooks[k]);
    return 0;
}

static void Sequencer_dealloc(Sequencer *self) {
    PyObject_GC_UnTrack(self);
    Sequencer_clear(self);
    if (self->pending.obj) PyBuffer_Release(&self->pending);
    PyMem_Free(self->done_seen);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

void sequencer_begin(Sequencer *self, int64_t rounds, uint16_t digest, int64_t *epoch, uint16_t *tag) {
    *epoch = self->epoch;
    *tag = (uint16_t)(self->tag = (self->tag * (unsigned)TAG_FACTOR + digest) & ((1u << TAG_BITS) - 1));
    self->epoch += rounds;
    self->calls++;
}

/* begin(rounds, digest) -> the (epoch, tag) of a call that begins now */
static PyObject *Sequencer_begin(Sequencer *self, PyObject *args) {
    long long rounds;
    unsigned short digest;
    int64_t epoch;
    uint16_t tag;
    if (!PyArg_ParseTuple(args, "LH", &rounds, &digest)) return NULL;
    sequencer_begin(self, rounds, digest, &epoch, &tag);
    return Py_BuildValue("(LI)", (long long)epoch, (unsigned int)tag);
}

static PyMethodDef sequencer_methods[] = {
    {"begin", (PyCFunction)Sequencer_begin, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef sequencer_members[] = {
    {"epoch", T_LONGLONG, offsetof(Sequencer, epoch), 0, "of the next round; only tests set it"},
    {"calls", T_LONGLONG, offsetof(Sequencer, calls), READONLY, "begun so far"},
    {"tag", T_UINT, offsetof(Sequencer, tag), READONLY, "of the calls so far"},
    {"spins", T_LONGLONG, offsetof(Sequencer, spins), 0, "looks at doorbells before the core is given away"},
    {"revoked", T_INT, offsetof(Sequencer, revoked), 0,
     "not 0: every call asks run_in_turn or slow_path, which refuse it"},
    {NULL, 0, 0, 0, NULL},
};

PyTypeObject sequencer_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "cxlemu._native.Sequencer",
    .tp_doc = "The order of a communicator's calls: their epochs, and a tag of all that was called.",
    .tp_basicsize = sizeof(Sequencer),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = PyType_GenericNew,
    .tp_init = (initproc)Sequencer_init,
    .tp_traverse = (traverseproc)Sequencer_traverse,
    .tp_clear = (inquiry)Sequencer_clear,
    .tp_dealloc = (destructor)Sequencer_dealloc,
    .tp_methods = sequencer_methods,
    .tp_members = sequencer_members,
};
