/* A Courier carries messages over one mailbox without Python. A message is a call of a plan whose payload is one doorbell line:
 * it has the message's size, tag and size of elements, and its bytes. The bytes of a larger message follow in a second call,
 * of a program that Python taught the courier for this size.
 *
 * A message that the courier cannot carry it leaves to Python, as if it had not been asked. Where a second call would wait for
 * long, it hands the rest over to Python, by a list that Python looks at whenever it has messages to see to: the handler of a
 * signal may raise before the call that asked has it. The courier is asked only while no other message of the rank is under
 * way: the gate says so. */
#include "python.h"

#include "idle.h"
#include "modules.h"

#define NPY_NO_DEPRECATED_API NPY_2_0_API_VERSION
#include <numpy/arrayobject.h>
#include <structmember.h>

enum { LOOKS_IN_STEP = 100, MAILBOX_RANKS = 2, SIZES = 8 };

/* Bytes of the gate. CLOSED and ADVANCING are not 0 while Python has something under way, WAKE while a wait should come back,
 * AT_WORK while a courier works without the GIL. */
enum { WAKE, CLOSED, ADVANCING, AT_WORK, GATE_BYTES };

/* The head of a message's line; the bytes follow. */
typedef struct {
    uint64_t nbytes;
    int32_t tag;
    uint32_t itemsize;
} head;

enum { INLINE_BYTES = PAYLOAD_BYTES - sizeof(head) };
_Static_assert(sizeof(head) == 16, "the line differs from collectives/communicator/messages/envelopes.py");

/* The program that moves the bytes of messages of one size. */
typedef struct {
    Program *program;
    int64_t nbytes, rounds;
    uint16_t tag;
} body;

typedef struct {
    PyObject_HEAD vectorcallfunc call;
    Program *program;
    body bodies[SIZES];
    int next_body;
    Py_buffer gate;
    PyObject *handed; /* a list of what couriers handed over and Python has not taken up */
    PyObject *status; /* the type of what a receive returns; NULL where messages are sent */
    PyObject *any; /* what stands for any tag, or NULL */
    PyObject *last; /* what the last call returned, NULL where it raised: see `Courier_call` */
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

/* Look at an array that a courier may carry: it has *nbytes, and elements of *itemsize. */
static uint8_t *carried(PyObject *object, bool written, int64_t *nbytes, int64_t *itemsize) {
    if (!PyArray_CheckExact(object)) return NULL; /* a masked array is for Python to refuse */
    PyArrayObject *array = (PyArrayObject *)object;
    if (!PyArray_IS_C_CONTIGUOUS(array) || (written && !PyArray_ISWRITEABLE(array))) return NULL;
    if (PyDataType_REFCHK(PyArray_DESCR(array))) return NULL;
    *nbytes = PyArray_NBYTES(array), *itemsize = PyArray_ITEMSIZE(array);
    return PyArray_DATA(array);
}

/* Return a tag, or -1 for what Python has to judge. */
static int32_t tag_of(PyObject *object) {
    int overflow;
    const long tag = PyBool_Check(object) ? -1 : PyLong_AsLongAndOverflow(object, &overflow);
    if (tag == -1) PyErr_Clear();
    return tag < 0 || tag > INT32_MAX ? -1 : (int32_t)tag;
}

/* Python may have begun a call and forgotten it because nothing came: it has touched nothing. */
static bool begin(Courier *self) {
    program *p = &self->program->p;
    if (self->program->state != READY && self->program->state != STARTED) return false;
    if (self->epoch >> (EPOCH_BITS - 1)) return false; /* Python says so */
    program_release_call(self->program);
    self->program->state = READY;
    uint8_t *const none = self->line.bytes; /* the part has nothing in its other buffers */
    p->buffers[INPUT] = p->buffers[OUTPUT] = self->line.bytes, p->buffers[SCRATCH] = none;
    p->done_seen = self->done_seen;
    program_begin(p, self->epoch, (uint16_t)self->tag);
    return true;
}

static body *body_of(Courier *self, int64_t nbytes) {
    for (int k = 0; k < SIZES; k++)
        if (self->bodies[k].program && self->bodies[k].nbytes == nbytes) return &self->bodies[k];
    return NULL;
}

/* Go on with a program that has begun; where asked to, wait for its end unless the gate wakes this thread. */
static enum status go_on(Courier *self, Program *its, bool small, int64_t idle_ns) {
    obstacle found[MAX_STREAMS];
    int waiting = 0;
    enum status status = IDLE;
    if (small)
        status = program_run(&its->p, 0, idle_ns && self->spins ? least(self->spins, LOOKS_IN_STEP) : 0, found,
                             &waiting);
    if (status != IDLE || (small && !idle_ns)) return status;
    idling since = {0};
    const enum state before = its->state;
    gate(self)[WAKE] = 0, gate(self)[AT_WORK] = 1;
    its->state = BUSY;
    Py_BEGIN_ALLOW_THREADS
    do status = program_run(&its->p, 0, 0, found, &waiting);
    while (status == IDLE && !gate(self)[WAKE] && idle(&since, idle_ns, self->spins, INT64_MAX, false));
    Py_END_ALLOW_THREADS
    its->state = before;
    gate(self)[AT_WORK] = 0;
    return status;
}

/* Move a message's bytes, after its line. Where not all have moved, the program stays STARTED, for Python. */
static bool carry(Courier *self, body *its, uint8_t *at, int64_t idle_ns) {
    Program *const call = its->program;
    program_release_call(call);
    call->p.buffers[INPUT] = call->p.buffers[OUTPUT] = at, call->p.buffers[SCRATCH] = self->line.bytes;
    call->p.done_seen = self->done_seen;
    program_begin(&call->p, self->epoch, its->tag);
    self->epoch += its->rounds;
    const bool done = go_on(self, call, its->nbytes <= SMALL_WORK_BYTES, idle_ns) == DONE;
    call->state = done ? READY : STARTED;
    return done;
}

/* Hand a message over: [peer, array, tag, line, begun, None]. The line is None where it is sent; begun: a program has begun to
 * move its last bytes; the last place is for the request that Python makes. */
static PyObject *hand_over(Courier *self, PyObject *array, PyObject *tag, bool begun) {
    gate(self)[AT_WORK] = 1; /* to make objects may give the GIL away */
    PyObject *its = Py_BuildValue("[iOOy#OO]", self->peer, array, tag, self->status ? (char *)self->line.bytes : NULL,
                                  (Py_ssize_t)PAYLOAD_BYTES, begun ? Py_True : Py_False, Py_None);
    if (its && PyList_Append(self->handed, its) < 0) Py_CLEAR(its);
    gate(self)[AT_WORK] = 0;
    return its;
}

/* send(array, tag) -> True: the message left; False: Python sends it; or what is handed over. */
static PyObject *send_away(Courier *self, PyObject *object, PyObject *tag_object) {
    int64_t nbytes, itemsize;
    const uint8_t *at = carried(object, false, &nbytes, &itemsize);
    if (!at) Py_RETURN_FALSE;
    body *its = nbytes > INLINE_BYTES ? body_of(self, nbytes) : NULL;
    if (nbytes > INLINE_BYTES && (!its || its->program->state == BUSY)) Py_RETURN_FALSE;
    const int32_t tag = tag_of(tag_object);
    if (tag < 0 || !begin(self)) Py_RETURN_FALSE;
    self->line.head = (head){(uint64_t)nbytes, tag, (uint32_t)itemsize};
    memset(self->line.bytes + sizeof(head), 0, INLINE_BYTES);
    if (!its) memcpy(self->line.bytes + sizeof(head), at, (size_t)nbytes);
    if (go_on(self, self->program, true, 0) != DONE) Py_RETURN_FALSE;
    self->epoch += self->rounds;
    if (its && !carry(self, its, (uint8_t *)at, 0)) return hand_over(self, object, tag_object, true);
    Py_RETURN_TRUE;
}

/* Wait for the next line; returns false where none came, or Python has something else to do. */
static bool await_line(Courier *self) {
    const bool came = go_on(self, self->program, true, self->idle_ns) == DONE;
    if (came) self->epoch += self->rounds;
    return came;
}

/* receive(array, tag) -> a status of what came; None: nothing came; or what is handed over. */
static PyObject *receive(Courier *self, PyObject *object, PyObject *tag_object) {
    int64_t nbytes, itemsize;
    uint8_t *at = carried(object, true, &nbytes, &itemsize);
    if (!at) Py_RETURN_NONE;
    const bool any = tag_object == self->any;
    const int32_t tag = any ? -1 : tag_of(tag_object);
    if ((tag < 0 && !any) || !begin(self) || !await_line(self)) Py_RETURN_NONE;
    const head *came = &self->line.head;
    const bool fits = came->nbytes <= (uint64_t)nbytes && came->tag >= 0 && (any || tag == came->tag) &&
                      (int64_t)came->itemsize == itemsize && (itemsize < 2 || came->nbytes % (uint64_t)itemsize == 0);
    body *its = fits && came->nbytes > INLINE_BYTES ? body_of(self, (int64_t)came->nbytes) : NULL;
    if (!fits || (came->nbytes > INLINE_BYTES && (!its || its->program->state == BUSY)))
        return hand_over(self, object, tag_object, false);
    if (!its) memcpy(at, self->line.bytes + sizeof(head), came->nbytes);
    else if (!carry(self, its, at, self->idle_ns)) return hand_over(self, object, tag_object, true);
    PyObject *fields = Py_BuildValue("((iil))", self->peer, (int)came->tag, (long)came->nbytes);
    PyObject *made = fields ? PyTuple_Type.tp_new((PyTypeObject *)self->status, fields, NULL) : NULL;
    Py_XDECREF(fields);
    return made;
}

/* The handler of a signal may raise in the caller, after this returned and before the caller has what it returned: the caller
 * then finds it in `last`. */
static PyObject *Courier_call(PyObject *callable, PyObject *const *args, size_t count, PyObject *names) {
    Courier *self = (Courier *)callable;
    if (PyVectorcall_NARGS(count) != 2 || names)
        return PyErr_Format(PyExc_TypeError, "a courier takes an array and a tag");
    Py_CLEAR(self->last);
    PyObject *its = self->status ? Py_None : Py_False;
    if (gate(self)[CLOSED] || gate(self)[ADVANCING] || gate(self)[AT_WORK] || PyList_GET_SIZE(self->handed))
        Py_INCREF(its);
    else its = self->status ? receive(self, args[0], args[1]) : send_away(self, args[0], args[1]);
    self->last = Py_XNewRef(its);
    return its;
}

/* Whether a plan is one doorbell line: its stream waits only at its start, so that a call that waits has touched nothing. */
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
    static char *names[] = {"program", "epoch",   "tag",   "rounds", "peer", "gate",
                            "handed",  "idle_ns", "spins", "status", "any",  NULL};
    PyObject *prog, *handed, *status, *any = NULL;
    if (self->program) return RAISED(PyExc_RuntimeError, "a Courier is made once");
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!LILiy*O!LLO|O", names, &program_type, &prog, &self->epoch,
                                     &self->tag, &self->rounds, &self->peer, &self->gate, &PyList_Type, &handed,
                                     &self->idle_ns, &self->spins, &status, &any))
        return -1;
    const bool right = self->gate.len == GATE_BYTES && ((Program *)prog)->state != UNBOUND &&
                       is_a_line(&((Program *)prog)->p) && self->epoch > 0 && !(self->epoch >> EPOCH_BITS) &&
                       self->rounds > 0 && !(self->tag >> TAG_BITS) &&
                       (status == Py_None ||
                        (PyType_Check(status) && PyType_IsSubtype((PyTypeObject *)status, &PyTuple_Type)));
    if (!right)
        return RAISED(PyExc_ValueError, "a courier carries calls of one doorbell line, which no cache stands before");
    self->program = (Program *)Py_NewRef(prog);
    self->handed = Py_NewRef(handed);
    self->status = status == Py_None ? NULL : Py_NewRef(status);
    self->any = Py_XNewRef(any);
    self->call = Courier_call;
    return 0;
}

/* teach(program, nbytes, rounds, tag): let this program move the bytes of messages of this size. */
static PyObject *Courier_teach(Courier *self, PyObject *args) {
    PyObject *prog;
    body its = {0};
    long long nbytes, rounds;
    if (!PyArg_ParseTuple(args, "O!LLH", &program_type, &prog, &nbytes, &rounds, &its.tag)) return NULL;
    const program *p = &((Program *)prog)->p;
    const int mine = self->status ? OUTPUT : INPUT;
    if (((Program *)prog)->state == UNBOUND || p->through || p->pacing || p->buffer_count != CALL_BUFFERS ||
        rounds < 1 || p->layout.ranks != MAILBOX_RANKS || p->buffer_bytes[mine] != nbytes ||
        p->buffer_bytes[INPUT + OUTPUT - mine] || p->buffer_bytes[SCRATCH] || nbytes <= INLINE_BYTES)
        return PyErr_Format(PyExc_ValueError, "a courier is taught calls of one array, which no cache stands before");
    body *kept = body_of(self, nbytes);
    if (!kept) kept = &self->bodies[self->next_body], self->next_body = (self->next_body + 1) % SIZES;
    Py_XDECREF(kept->program);
    its.program = (Program *)Py_NewRef(prog), its.nbytes = nbytes, its.rounds = rounds;
    *kept = its;
    Py_RETURN_NONE;
}

static void Courier_dealloc(Courier *self) {
    for (int k = 0; k < SIZES; k++) Py_XDECREF(self->bodies[k].program);
    if (self->gate.obj) PyBuffer_Release(&self->gate);
    Py_XDECREF(self->program);
    Py_XDECREF(self->handed);
    Py_XDECREF(self->status);
    Py_XDECREF(self->any);
    Py_XDECREF(self->last);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyMethodDef courier_methods[] = {
    {"teach", (PyCFunction)Courier_teach, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef courier_members[] = {
    {"epoch", T_LONGLONG, offsetof(Courier, epoch), 0, "of the next call on the mailbox, by whomever"},
    {"spins", T_LONGLONG, offsetof(Courier, spins), 0, "looks before the core is given away"},
    {"last", T_OBJECT, offsetof(Courier, last), READONLY, "what the last call returned; None where it raised"},
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
    .tp_methods = courier_methods,
    .tp_members = courier_members,
};

int courier_add_to(PyObject *module) {
    return PyArray_ImportNumPyAPI() < 0 ? -1 : PyModule_AddType(module, &courier_type);
}
