/* A Courier carries small messages over one mailbox without Python: the calls of a plan whose payload is one doorbell line,
 * which says the message's size, tag and size of elements, and has its bytes. What it cannot carry it leaves to Python, as
 * if it had not been asked, and it is asked only while nothing else of the rank's messages is under way: the gate says so. */
#include "python.h"

#include "idle.h"
#include "modules.h"

#define NPY_NO_DEPRECATED_API NPY_2_0_API_VERSION
#include <numpy/arrayobject.h>
#include <structmember.h>

enum { LOOKS_IN_STEP = 100, MAILBOX_RANKS = 2 };

/* Bytes of the gate. CLOSED and BUSY are not 0 where Python has something under way, WAKE where a wait is to come back. */
enum { WAKE, CLOSED, BUSY_NOW, GATE_BYTES };

/* Before a message's bytes in its line. */
typedef struct {
    uint64_t nbytes;
    int32_t tag;
    uint32_t itemsize;
} head;

enum { INLINE_BYTES = PAYLOAD_BYTES - sizeof(head) };
_Static_assert(sizeof(head) == 16, "the line differs from collectives/communicator/messages/envelopes.py");

typedef struct {
    PyObject_HEAD vectorcallfunc call;
    Program *program;
    Py_buffer gate;
    PyObject *status; /* the type of what a receive returns; NULL where messages are sent */
    long long epoch, rounds, idle_ns, spins;
    unsigned int tag; /* of the plan */
    int peer;
    int64_t done_seen[MAILBOX_RANKS];
    union {
        head head;
        uint8_t bytes[PAYLOAD_BYTES];
    } line;
} Courier;

static volatile char *gate(const Courier *self) { return self->gate.buf; }

/* An array that a courier may carry: *nbytes of it, and *itemsize of its elements. */
static uint8_t *carried(PyObject *object, bool written, int64_t *nbytes, int64_t *itemsize) {
    if (!PyArray_Check(object)) return NULL;
    PyArrayObject *array = (PyArrayObject *)object;
    if (!PyArray_IS_C_CONTIGUOUS(array) || (written && !PyArray_ISWRITEABLE(array))) return NULL;
    if (PyDataType_REFCHK(PyArray_DESCR(array))) return NULL;
    *nbytes = PyArray_NBYTES(array), *itemsize = PyArray_ITEMSIZE(array);
    return PyArray_DATA(array);
}

/* A call that Python began and forgot, because nothing came, has touched nothing. */
static bool begin(Courier *self) {
    program *p = &self->program->p;
    if (self->program->state != READY && self->program->state != STARTED) return false;
    program_release_call(self->program);
    self->program->state = READY;
    uint8_t *const none = self->line.bytes; /* the part has nothing in its other buffers */
    p->buffers[INPUT] = p->buffers[OUTPUT] = self->line.bytes, p->buffers[SCRATCH] = none;
    p->done_seen = self->done_seen;
    program_begin(p, self->epoch, (uint16_t)self->tag);
    return true;
}

/* send(array, tag): whether the message left. Its line is free, or Python waits for it. */
static PyObject *send_away(Courier *self, PyObject *object, PyObject *tag_object) {
    int64_t nbytes, itemsize;
    const uint8_t *at = carried(object, false, &nbytes, &itemsize);
    if (!at || nbytes > INLINE_BYTES) Py_RETURN_FALSE;
    int overflow;
    const long tag = PyLong_AsLongAndOverflow(tag_object, &overflow);
    if (tag == -1 && PyErr_Occurred()) return NULL;
    if (overflow || tag < 0 || tag > INT32_MAX || !begin(self)) Py_RETURN_FALSE;
    self->line.head = (head){(uint64_t)nbytes, (int32_t)tag, (uint32_t)itemsize};
    memset(self->line.bytes + sizeof(head), 0, INLINE_BYTES);
    memcpy(self->line.bytes + sizeof(head), at, (size_t)nbytes);
    obstacle found[MAX_STREAMS];
    int waiting = 0;
    if (program_run(&self->program->p, 0, 0, found, &waiting) != DONE) Py_RETURN_FALSE;
    self->epoch += self->rounds;
    Py_RETURN_TRUE;
}

/* Wait for the next line; false where none came, or Python has something else to do. */
static bool await_line(Courier *self) {
    program *p = &self->program->p;
    obstacle found[MAX_STREAMS];
    int waiting = 0;
    const int64_t in_step = self->spins ? least(self->spins, LOOKS_IN_STEP) : 0;
    enum status status = program_run(p, 0, in_step, found, &waiting);
    if (status == IDLE && self->idle_ns > 0) {
        idling since = {0};
        gate(self)[WAKE] = 0, gate(self)[BUSY_NOW] = 1;
        self->program->state = BUSY;
        Py_BEGIN_ALLOW_THREADS
        do status = program_run(p, 0, 0, found, &waiting);
        while (status == IDLE && !gate(self)[WAKE] && idle(&since, self->idle_ns, self->spins, INT64_MAX, false));
        Py_END_ALLOW_THREADS
        self->program->state = READY;
        gate(self)[BUSY_NOW] = 0;
    }
    if (status == DONE) self->epoch += self->rounds;
    return status == DONE;
}

/* receive(array, tag): what came, as a status; the line's bytes where it fits neither array nor tag; None: nothing came. */
static PyObject *receive(Courier *self, PyObject *object, PyObject *tag_object) {
    int64_t nbytes, itemsize;
    uint8_t *at = carried(object, true, &nbytes, &itemsize);
    int overflow;
    if (!at) Py_RETURN_NONE;
    const long tag = PyLong_AsLongAndOverflow(tag_object, &overflow);
    if (tag == -1 && PyErr_Occurred()) return NULL;
    if (overflow || tag < -1 || tag > INT32_MAX || !begin(self) || !await_line(self)) Py_RETURN_NONE;
    const head *came = &self->line.head;
    const bool fits = came->nbytes <= INLINE_BYTES && (int64_t)came->nbytes <= nbytes && came->tag >= 0 &&
                      (tag == -1 || tag == came->tag) && (int64_t)came->itemsize == itemsize &&
                      (itemsize < 2 || came->nbytes % (uint64_t)itemsize == 0);
    if (!fits) return PyBytes_FromStringAndSize((const char *)self->line.bytes, PAYLOAD_BYTES);
    memcpy(at, self->line.bytes + sizeof(head), came->nbytes);
    PyObject *fields = Py_BuildValue("((iil))", self->peer, (int)came->tag, (long)came->nbytes);
    PyObject *made = fields ? PyTuple_Type.tp_new((PyTypeObject *)self->status, fields, NULL) : NULL;
    Py_XDECREF(fields);
    return made;
}

static PyObject *Courier_call(PyObject *callable, PyObject *const *args, size_t count, PyObject *names) {
    Courier *self = (Courier *)callable;
    if (PyVectorcall_NARGS(count) != 2 || names) {
        PyErr_SetString(PyExc_TypeError, "a courier takes an array and a tag");
        return NULL;
    }
    if (gate(self)[CLOSED] || gate(self)[BUSY_NOW]) {
        if (self->status) Py_RETURN_NONE;
        Py_RETURN_FALSE;
    }
    return self->status ? receive(self, args[0], args[1]) : send_away(self, args[0], args[1]);
}

/* The plan is one doorbell line: a stream that waits only at its start, so that a call that waits has touched nothing. */
static bool is_a_line(const program *p) {
    if (p->stream_count != 1 || p->through || p->pacing || p->buffer_count != CALL_BUFFERS) return false;
    if (p->layout.ranks != MAILBOX_RANKS || p->buffer_bytes[SCRATCH]) return false;
    for (int64_t k = 0; k < p->lengths[0]; k++) {
        const uint8_t op = p->records[0][k].op;
        if (op != SIGNAL && op != SIGNAL_DATA && (k || (op != WAIT_ALL && op != WAIT_DATA))) return false;
    }
    return p->buffer_bytes[INPUT] + p->buffer_bytes[OUTPUT] == PAYLOAD_BYTES;
}

static int Courier_init(Courier *self, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"program", "epoch", "tag", "rounds", "peer", "gate", "idle_ns", "spins", "status", NULL};
    PyObject *prog, *status;
    if (self->program) {
        PyErr_SetString(PyExc_RuntimeError, "a Courier is made once");
        return -1;
    }
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!LILiy*LLO", names, &program_type, &prog, &self->epoch, &self->tag,
                                     &self->rounds, &self->peer, &self->gate, &self->idle_ns, &self->spins, &status))
        return -1;
    const bool right = self->gate.len == GATE_BYTES && ((Program *)prog)->state != UNBOUND &&
                       is_a_line(&((Program *)prog)->p) && self->epoch > 0 && !(self->epoch >> EPOCH_BITS) &&
                       self->rounds > 0 && !(self->tag >> TAG_BITS) &&
                       (status == Py_None ||
                        (PyType_Check(status) && PyType_IsSubtype((PyTypeObject *)status, &PyTuple_Type)));
    if (!right) {
        PyErr_SetString(PyExc_ValueError, "a courier carries calls of one doorbell line, which no cache stands before");
        return -1;
    }
    self->program = (Program *)Py_NewRef(prog);
    self->status = status == Py_None ? NULL : Py_NewRef(status);
    self->call = Courier_call;
    return 0;
}

static void Courier_dealloc(Courier *self) {
    if (self->gate.obj) PyBuffer_Release(&self->gate);
    Py_XDECREF(self->program);
    Py_XDECREF(self->status);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyMemberDef courier_members[] = {
    {"epoch", T_LONGLONG, offsetof(Courier, epoch), 0, "of the next call on the mailbox, by whomever"},
    {"spins", T_LONGLONG, offsetof(Courier, spins), 0, "looks before the core is given away"},
    {NULL, 0, 0, 0, NULL},
};

static PyTypeObject courier_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "cxlemu._native.Courier",
    .tp_doc = "Small messages over one mailbox: courier(array, tag).",
    .tp_basicsize = sizeof(Courier),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_vectorcall_offset = offsetof(Courier, call),
    .tp_call = PyVectorcall_Call,
    .tp_new = PyType_GenericNew,
    .tp_init = (initproc)Courier_init,
    .tp_dealloc = (destructor)Courier_dealloc,
    .tp_members = courier_members,
};

int courier_add_to(PyObject *module) {
    if (PyArray_ImportNumPyAPI() < 0 || PyType_Ready(&courier_type) < 0) return -1;
    return PyModule_AddObjectRef(module, "Courier", (PyObject *)&courier_type);
}
