/* Python's type Pacer: the pace of one rank. */
#include "cost/tables.h"
#include "modules.h"
#include "pace.h"

#include <structmember.h>

typedef struct {
    PyObject_HEAD pacer p;
    PyObject *kept; /* a list of the objects that own the model's tables */
    Py_buffer clocks, test_ns;
} Pacer;

enum { LOCK_S = 10 }; /* a holder needs microseconds */

/* Return whether the clocks fit the model and the cards, and every rank has a route to each card that no host owns. */
static bool fits(const pacer *p, int64_t cards, long long card_bytes, Py_ssize_t nbytes) {
    for (int64_t k = 0; k < cards; k++) {
        if (p->card_of[k] < 0 || p->card_of[k] >= p->model.cards) return false;
        if (p->model.card[p->card_of[k]].owner_host < 0 && !route_to(&p->model, p->rank, p->card_of[k])) return false;
    }
    return cards > 0 && cards <= MAX_CARDS && card_bytes > 0 && card_bytes % LINE_BYTES == 0 &&
           card_bytes <= INT64_MAX / MAX_CARDS && p->shared->resource_count == p->model.resource_count &&
           pace_clocks_bytes(p->model.resource_count, cards, card_bytes) == nbytes;
}

static int Pacer_init(Pacer *self, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"clocks", "model", "rank", "cards", "card_bytes", "test_ns", NULL};
    pacer *p = &self->p;
    long long card_bytes;
    int64_t cards;
    PyObject *tables, *table, *test = Py_None;
    if (self->kept) return RAISED(PyExc_ValueError, "a Pacer is made once");
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "w*O!iOL|O", names, &self->clocks, &PyDict_Type, &tables, &p->rank,
                                     &table, &card_bytes, &test))
        return -1;
    if (!(self->kept = PyList_New(0))) return -1;
    const service_rate *rates = cost_model_take(&p->model, tables, self->kept);
    if (!rates || !(p->card_of = cost_keep_table(self->kept, table, sizeof(int32_t), &cards))) return -1;
    if (test != Py_None) {
        if (PyObject_GetBuffer(test, &self->test_ns, PyBUF_SIMPLE) < 0) return -1;
        if (self->test_ns.len != sizeof(int64_t))
            return RAISED(PyExc_ValueError, "a test's clock is one 64-bit number");
        p->test_ns = self->test_ns.buf;
    }
    if (p->rank < 0 || p->rank >= p->model.rank_count) return RAISED(PyExc_ValueError, "the model has no such rank");
    uint8_t *at = self->clocks.buf;
    if ((uintptr_t)at % _Alignof(clocks) || self->clocks.len < CLOCKS_HEAD_BYTES)
        return RAISED(PyExc_ValueError, "clocks begin at a whole line");
    p->shared = (clocks *)(void *)at;
    if (!fits(p, cards, card_bytes, self->clocks.len))
        return RAISED(PyExc_ValueError, "the clocks are those of another model, or of other cards");
    p->time_scale = p->shared->time_scale;
    if (!(p->time_scale > 0)) return RAISED(PyExc_ValueError, "the clocks have no time scale");
    p->model.resources = (resource *)(void *)(at + CLOCKS_HEAD_BYTES);
    p->rung = (rung *)(void *)(at + pace_clocks_bytes(p->model.resource_count, 0, 0));
    p->card_lines = card_bytes / LINE_BYTES, p->card_count = (int32_t)cards;
    if (!(p->free_ns = PyMem_Calloc((size_t)p->model.multiprocessors + 1, sizeof *p->free_ns))) {
        PyErr_NoMemory();
        return -1;
    }
    p->model.transfers = (int64_t)p->rank << 40; /* no two ranks' transfers have the same number */
    if (!host_lock_take(&p->shared->lock, LOCK_S))
        return RAISED(PyExc_TimeoutError, "another rank holds the pool's clocks, it may be stopped");
    for (int32_t k = 0; k < p->model.resource_count; k++) p->model.resources[k].service = rates[k];
    host_lock_release(&p->shared->lock);
    return 0;
}

static void Pacer_dealloc(Pacer *self) {
    if (self->clocks.obj) PyBuffer_Release(&self->clocks);
    if (self->test_ns.obj) PyBuffer_Release(&self->test_ns);
    PyMem_Free(self->p.free_ns);
    Py_XDECREF(self->kept);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyMemberDef pacer_members[] = {
    {"ended_ns", T_LONGLONG, offsetof(Pacer, p.ended_ns), READONLY,
     "modelled time at which the rank's last call was over"},
    {"time_scale", T_DOUBLE, offsetof(Pacer, p.time_scale), READONLY,
     "this machine's nanoseconds for one of the model"},
    {NULL, 0, 0, 0, NULL},
};

static PyTypeObject PacerType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "cxlemu._native.Pacer",
    .tp_doc = "What makes the instructions of one rank take their modelled time.",
    .tp_basicsize = sizeof(Pacer),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = PyType_GenericNew,
    .tp_init = (initproc)Pacer_init,
    .tp_dealloc = (destructor)Pacer_dealloc,
    .tp_members = pacer_members,
};

/* clocks_bytes(resources, cards, card_bytes) -> int */
static PyObject *module_clocks_bytes(PyObject *module, PyObject *args) {
    long long resources, cards, card_bytes;
    (void)module;
    if (!PyArg_ParseTuple(args, "LLL", &resources, &cards, &card_bytes)) return NULL;
    return PyLong_FromLongLong(pace_clocks_bytes(resources, cards, card_bytes));
}

/* clocks_make(clocks, resources, time_scale): make them in bytes that are zero, before any rank uses them */
static PyObject *module_clocks_make(PyObject *module, PyObject *args) {
    Py_buffer memory;
    double time_scale;
    long long resources;
    (void)module;
    if (!PyArg_ParseTuple(args, "w*Ld", &memory, &resources, &time_scale)) return NULL;
    clocks *made = memory.buf;
    const bool right = memory.len >= CLOCKS_HEAD_BYTES && time_scale > 0 && host_lock_make(&made->lock);
    if (right) made->resource_count = resources, made->time_scale = time_scale;
    PyBuffer_Release(&memory);
    if (!right)
        return PyErr_Format(
            PyExc_ValueError,
            "clocks are a page or more, with a positive time scale, on a system whose locks outlive their holders");
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"clocks_bytes", module_clocks_bytes, METH_VARARGS, NULL},
    {"clocks_make", module_clocks_make, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

pacer *pace_pacer_of(PyObject *object) {
    if (!PyObject_TypeCheck(object, &PacerType) || !((Pacer *)object)->p.shared) {
        PyErr_SetString(PyExc_TypeError, "a pacer is a Pacer that was made");
        return NULL;
    }
    return &((Pacer *)object)->p;
}

int pace_add_to(PyObject *module) {
    return PyModule_AddFunctions(module, functions) < 0 ? -1 : PyModule_AddType(module, &PacerType);
}
