/* Python's type Simulation, for engines/virtual.py: it keeps tables as the buffers that they come in, packs records,
 * and returns statistics as bytes. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "../cost/tables.h"
#include "../constants.h"
#include "../interpreter.h"
#include "../layout_module.h"
#include "virtual.h"

#include <stdlib.h>
#include <string.h>

typedef struct {
    PyObject_HEAD simulation v;
    PyObject *kept; /* a list of all objects whose buffers are in use */
    bool ran;
} Simulation;

static void *zeros(int64_t count, size_t size) {
    void *found = count > PTRDIFF_MAX / (int64_t)size ? NULL : calloc((size_t)(count > 0 ? count : 1), size);
    if (!found) PyErr_NoMemory();
    return found;
}

static int Simulation_init(Simulation *self, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"model", NULL};
    PyObject *tables;
    simulation *v = &self->v;
    model *m = &v->model;
    if (self->kept) return RAISED(PyExc_ValueError, "a Simulation is made once");
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!", names, &PyDict_Type, &tables)) return -1;
    if (!(self->kept = PyList_New(0))) return -1;
    const service_rate *rates = cost_model_take(m, tables, self->kept);
    if (!rates) return -1;
    m->resources = zeros(m->resource_count, sizeof(resource));
    v->ranks = zeros(m->rank_count, sizeof(rank_state));
    v->streams = zeros((int64_t)m->rank_count * MAX_STREAMS, sizeof(stream));
    v->free_ns = zeros((int64_t)m->rank_count * m->multiprocessors, sizeof(int64_t));
    v->heap = zeros((int64_t)m->rank_count * MAX_STREAMS, sizeof(due));
    v->woken = zeros((int64_t)m->rank_count * MAX_STREAMS, sizeof(int32_t));
    if (!m->resources || !v->ranks || !v->streams || !v->free_ns || !v->heap || !v->woken) return -1;
    for (int32_t k = 0; k < m->resource_count; k++) m->resources[k].service = rates[k];
    return 0;
}

static void Simulation_dealloc(Simulation *self) {
    simulation *v = &self->v;
    for (int64_t k = 0; k < v->comm_count; k++) {
        free(v->comms[k].published), free(v->comms[k].done), free(v->comms[k].done_shows),
            free(v->comms[k].done_waiters);
    }
    for (int64_t k = 0; k < v->call_count; k++) {
        const virtual_call *c = &v->calls[k];
        free(c->begin_ns), free(c->end_ns);
        if (c->shares) continue;
        for (int64_t its = 0; c->streams && its < (int64_t)c->members * MAX_STREAMS; its++)
            free(c->streams[its].records);
        free(c->streams), free(c->events);
    }
    for (int32_t k = 0; v->ranks && k < v->model.rank_count; k++) free(v->ranks[k].events);
    free(v->comms), free(v->calls), free(v->gates), free(v->model.resources), free(v->ranks), free(v->streams),
        free(v->heap);
    free(v->free_ns), free(v->woken), free(v->log), free(v->log_reserved);
    Py_XDECREF(self->kept);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyObject *Simulation_communicator(Simulation *self, PyObject *args) {
    communicator made = {0};
    long long epochs, used;
    int64_t cards;
    simulation *v = &self->v;
    PyObject *shape, *table;
    layout *l = &made.layout;
    if (!PyArg_ParseTuple(args, "OOLL", &shape, &table, &epochs, &used) || layout_take(shape, l) < 0) return NULL;
    if (!(made.card_of = cost_keep_table(self->kept, table, sizeof(int32_t), &cards))) return NULL;
    made.epochs = epochs;
    bool there = cards == l->cards && l->own_doorbells >= 0 && l->own_doorbells <= l->doorbells_per_rank &&
                 l->pool_cards >= 1 && l->pool_cards <= l->cards &&
                 (!l->own_doorbells || l->ranks <= l->cards - l->pool_cards);
    for (int32_t k = 0; there && k < l->cards; k++) there = made.card_of[k] >= 0 && made.card_of[k] < v->model.cards;
    if (!there || l->ranks < 1 || l->slots < 1 || l->doorbells_per_rank < 0 || used < 0 || epochs < used ||
        (int64_t)l->ranks * l->doorbells_per_rank > INT32_MAX - l->ranks)
        return PyErr_Format(PyExc_ValueError, "a communicator of this layout is not possible on these cards");
    if (epochs > INT64_MAX / l->ranks) return PyErr_NoMemory(); /* a plan may say any number of rounds */
    communicator *all = realloc(v->comms, (size_t)(v->comm_count + 1) * sizeof *all);
    if (!all) return PyErr_NoMemory();
    v->comms = all;
    const int64_t bells = (int64_t)l->ranks * l->doorbells_per_rank * l->slots;
    made.published = zeros(bells, sizeof(bell)), made.done = zeros(l->ranks * epochs, sizeof(int64_t));
    made.done_shows = zeros(l->ranks, sizeof(int64_t)), made.done_waiters = zeros(l->ranks, sizeof(int32_t));
    all[v->comm_count++] = made;
    if (!made.published || !made.done || !made.done_shows || !made.done_waiters) return NULL;
    for (int32_t k = 0; k < l->ranks; k++) made.done_shows[k] = used; /* these epochs are shown from the beginning */
    return PyLong_FromLongLong(v->comm_count - 1);
}

static bool fits(int64_t first, int64_t count, int64_t all) { return first >= 0 && count >= 0 && first + count <= all; }

static bool tables_fit(const simulation *v, const virtual_call *c, const communicator *m) {
    for (int32_t k = 0; k < c->kernel_count; k++)
        if (!kernel_cost_fits(&c->kernels[k])) return false;
    if (c->kernel_count && !v->model.multiprocessors) return false;
    for (int32_t k = 0; k < c->regions.count; k++) {
        const region *r = &c->regions.all[k];
        if (r->cards < 1 || r->cards > MAX_CARDS || !fits(r->first_card, r->cards, m->layout.cards) ||
            r->granularity_bytes < 1 || r->start < 0 || r->start > LARGEST_BYTES)
            return false;
    }
    for (int32_t k = 0; k < c->group_count; k++) {
        const group *g = &c->groups[k];
        const int64_t last = g->first + (int64_t)(g->count - 1) * g->stride;
        if (g->count < 1 || g->first < 0 || g->stride < 0 ||
            last >= (int64_t)m->layout.ranks * (m->layout.doorbells_per_rank + 1))
            return false;
    }
    return true;
}

/* Pack one stream's records, without keeping the table. Return false with an exception on failure. */
static bool take_stream(program_stream *its, PyObject *table) {
    Py_buffer rows;
    if (PyObject_GetBuffer(table, &rows, PyBUF_C_CONTIGUOUS) < 0) return false;
    const bool right = rows.len % (Py_ssize_t)sizeof(record) == 0;
    if (right) {
        its->length = rows.len / (Py_ssize_t)sizeof(record);
        int64_t bytes;
        its->records = packed_make(rows.buf, its->length, &bytes);
        if (!its->records) PyErr_NoMemory();
    } else {
        PyErr_SetString(PyExc_ValueError, "a stream has records of another size");
    }
    PyBuffer_Release(&rows);
    return right && its->records;
}

/* Take one member's (streams, number of events). */
static bool take_member(virtual_call *c, int32_t member, PyObject *its) {
    PyObject *streams;
    if (!PyArg_ParseTuple(its, "Oi", &streams, &c->events[member])) return false;
    PyObject *each = PySequence_Fast(streams, "a member's streams are a sequence");
    if (!each) return false;
    const Py_ssize_t length = PySequence_Fast_GET_SIZE(each);
    bool right = length <= MAX_STREAMS && c->events[member] >= 0;
    if (!right) PyErr_SetString(PyExc_ValueError, "a member has too many streams, or fewer than no events");
    for (Py_ssize_t k = 0; right && k < length; k++)
        right = take_stream(&c->streams[member * MAX_STREAMS + k], PySequence_Fast_GET_ITEM(each, k));
    Py_DECREF(each);
    return right;
}

/* Take all members, one after another: each is packed before the next one is asked for. */
static bool take_members(virtual_call *c, PyObject *members) {
    PyObject *its = PyObject_GetIter(members);
    if (!its) return false;
    int32_t taken = 0;
    for (PyObject *one; (one = PyIter_Next(its)); taken++) {
        const bool right = taken < c->members ? take_member(c, taken, one) : REFUSE("a call has too many members");
        Py_DECREF(one);
        if (!right) break;
    }
    Py_DECREF(its);
    if (!PyErr_Occurred() && taken < c->members) PyErr_SetString(PyExc_ValueError, "a call has too few members");
    return !PyErr_Occurred();
}

/* call(comm, epoch, rounds, regions, groups, kernels, members) -> its number. members: (streams, number of events) of
 * each, or the number of an earlier call that has the same members. */
static PyObject *Simulation_call(Simulation *self, PyObject *args) {
    simulation *v = &self->v;
    virtual_call made = {0};
    long long epoch, rounds;
    int64_t groups, region_count, kernels;
    PyObject *region_rows, *group_rows, *kernel_rows, *members;
    if (!PyArg_ParseTuple(args, "iLLOOOO", &made.comm, &epoch, &rounds, &region_rows, &group_rows, &kernel_rows,
                          &members))
        return NULL;
    const long long like = PyLong_Check(members) ? PyLong_AsLongLong(members) : -1;
    if (PyErr_Occurred()) return NULL;
    made.epoch = epoch, made.rounds = rounds, made.shares = PyLong_Check(members);
    if (made.comm < 0 || made.comm >= v->comm_count || epoch < 1 || rounds < 0 ||
        epoch - 1 + rounds > v->comms[made.comm].epochs ||
        (made.shares &&
         (like < 0 || like >= v->call_count || v->calls[like].members != v->comms[made.comm].layout.ranks)))
        return PyErr_Format(PyExc_ValueError, "the call does not fit its communicator");
    made.members = v->comms[made.comm].layout.ranks;
    made.regions.all = cost_keep_table(self->kept, region_rows, sizeof(region), &region_count);
    made.groups = made.regions.all ? cost_keep_table(self->kept, group_rows, sizeof(group), &groups) : NULL;
    made.kernels = made.groups ? cost_keep_table(self->kept, kernel_rows, sizeof(kernel_cost), &kernels) : NULL;
    if (!made.kernels) return NULL;
    made.regions.count = (int32_t)region_count, made.regions.card_of = v->comms[made.comm].card_of;
    made.group_count = (int32_t)groups, made.kernel_count = (int32_t)kernels;
    if (!tables_fit(v, &made, &v->comms[made.comm]))
        return PyErr_Format(PyExc_ValueError, "a region, a group or a kernel names what is not there");
    virtual_call *all = realloc(v->calls, (size_t)(v->call_count + 1) * sizeof *all);
    if (!all) return PyErr_NoMemory();
    v->calls = all;
    if (made.shares) made.streams = v->calls[like].streams, made.events = v->calls[like].events;
    else made.streams = zeros((int64_t)made.members * MAX_STREAMS, sizeof *made.streams);
    if (!made.shares) made.events = zeros(made.members, sizeof *made.events);
    made.begin_ns = zeros(made.members, sizeof(int64_t)), made.end_ns = zeros(made.members, sizeof(int64_t));
    made.first_gate = v->gate_count;
    const int64_t more = groups * (rounds + v->comms[made.comm].layout.slots);
    all[v->call_count++] = made;
    gate *gates = made.begin_ns && made.end_ns && made.streams && made.events && v->gate_count + more < INT32_MAX
                      ? realloc(v->gates, (size_t)(v->gate_count + more + 1) * sizeof *gates)
                      : NULL;
    if (!gates) return PyErr_NoMemory();
    v->gates = gates;
    for (int64_t k = 0; k < more; k++) gates[v->gate_count++].group = -1;
    if (!made.shares && !take_members(&v->calls[v->call_count - 1], members)) return NULL;
    return PyLong_FromLongLong(v->call_count - 1);
}

static PyObject *outcome_of(const simulation *v, enum outcome outcome, int64_t where) {
    if (outcome == NO_MEMORY) return PyErr_NoMemory();
    const long long at = where < 0 ? -1 : v->streams[where].at;
    return Py_BuildValue("iiiLi", outcome, where < 0 ? -1 : (int)(where / MAX_STREAMS), (int)(where % MAX_STREAMS), at,
                         v->model.no_way_to);
}

/* run(turns, first_turn, logs) -> (outcome, rank, stream, record, card without a route to it) */
static PyObject *Simulation_run(Simulation *self, PyObject *args) {
    simulation *v = &self->v;
    PyObject *turns, *firsts;
    int64_t turn_count, first_count, where;
    int logs;
    if (!PyArg_ParseTuple(args, "OOp", &turns, &firsts, &logs)) return NULL;
    if (self->ran) return PyErr_Format(PyExc_ValueError, "a Simulation runs once");
    v->turns = cost_keep_table(self->kept, turns, 2 * sizeof(int32_t), &turn_count);
    v->first_turn = v->turns ? cost_keep_table(self->kept, firsts, sizeof(int32_t), &first_count) : NULL;
    if (!v->first_turn) return NULL;
    bool right = first_count == v->model.rank_count + 1 && v->first_turn[0] == 0 &&
                 v->first_turn[v->model.rank_count] == turn_count;
    for (int64_t k = 0; right && k < v->model.rank_count; k++) right = v->first_turn[k] <= v->first_turn[k + 1];
    for (int64_t k = 0; right && k < turn_count; k++)
        right = v->turns[2 * k] >= 0 && v->turns[2 * k] < v->call_count && v->turns[2 * k + 1] >= 0 &&
                v->turns[2 * k + 1] < v->calls[v->turns[2 * k]].members;
    if (!right) return PyErr_Format(PyExc_ValueError, "the turns name calls that are not there");
    v->logs = logs;
    if (logs) v->model.seen = simulation_log_reservation, v->model.watcher = v;
    self->ran = true;
    enum outcome outcome;
    Py_BEGIN_ALLOW_THREADS
    outcome = simulation_run(v, &where);
    Py_END_ALLOW_THREADS
    return outcome_of(v, outcome, where);
}

/* begin(call, ranks, now): begin a call on these ranks, which are in none, on a ring of its own */
static PyObject *Simulation_begin(Simulation *self, PyObject *args) {
    simulation *v = &self->v;
    Py_buffer ranks;
    int call;
    long long now;
    if (!PyArg_ParseTuple(args, "iy*L", &call, &ranks, &now)) return NULL;
    self->ran = true;
    const bool right = call >= 0 && call < v->call_count && now >= 0 && now <= LONGEST_NS && !v->first_turn &&
                       ranks.len == v->calls[call].members * (Py_ssize_t)sizeof(int32_t);
    const enum outcome outcome = right ? simulation_begin(v, call, ranks.buf, now) : BAD_RECORD;
    PyBuffer_Release(&ranks);
    if (outcome == NO_MEMORY) return PyErr_NoMemory();
    if (outcome == OVER) Py_RETURN_NONE;
    return PyErr_Format(PyExc_ValueError, "a call begins on ranks that are there and in no other call");
}

/* advance(until) -> ((outcome, rank, stream, record, card), call that ended or -1, when) */
static PyObject *Simulation_advance(Simulation *self, PyObject *args) {
    simulation *v = &self->v;
    long long until;
    int64_t where, end = 0;
    if (!PyArg_ParseTuple(args, "L", &until)) return NULL;
    enum outcome outcome;
    Py_BEGIN_ALLOW_THREADS
    outcome = simulation_advance(v, until, &where);
    Py_END_ALLOW_THREADS
    for (int32_t k = 0; v->ended >= 0 && k < v->calls[v->ended].members; k++)
        end = later(end, v->calls[v->ended].end_ns[k]);
    PyObject *found = outcome_of(v, outcome, where);
    return found ? Py_BuildValue("NLL", found, (long long)v->ended, (long long)end) : NULL;
}

/* transfer(rank, cards, granularity, offset, nbytes, to_pool, now) -> (end, landed, queued): one READ or WRITE that a
 * stream begins at `now`, with its cost; landed: when all of a WRITE is in the pool. Requests come in the order of calls. */
static PyObject *Simulation_transfer(Simulation *self, PyObject *args) {
    model *m = &self->v.model;
    Py_buffer cards;
    int rank, to_pool;
    long long granularity, offset, nbytes, now;
    if (!PyArg_ParseTuple(args, "iy*LLLpL", &rank, &cards, &granularity, &offset, &nbytes, &to_pool, &now)) return NULL;
    const Py_ssize_t count = cards.len / (Py_ssize_t)sizeof(int32_t);
    bool right = rank >= 0 && rank < m->rank_count && count >= 1 && count <= MAX_CARDS && granularity >= 1 &&
                 offset >= 0 && nbytes >= 0 && now >= 0 && now <= LONGEST_NS;
    for (Py_ssize_t k = 0; right && k < count; k++)
        right = ((const int32_t *)cards.buf)[k] >= 0 && ((const int32_t *)cards.buf)[k] < m->cards;
    const region whole = {.cards = (int32_t)count, .granularity_bytes = granularity, .nbytes = LARGEST_BYTES};
    const region_table regions = {.all = &whole, .count = 1, .card_of = cards.buf};
    record its = {.op = to_pool ? WRITE : READ, .nbytes = nbytes};
    *(to_pool ? &its.dst : &its.a) = (operand){.kind = REGION, .offset = offset};
    progress p = {.now = now};
    int64_t landed = now;
    enum part part = right ? MORE : INVALID_RECORD;
    self->ran = true; /* what takes its time from here is not a run of plans */
    if (right) change_ways(m, now);
    while (part == MORE) part = cost_instruction_part(m, rank, regions, &its, &landed, &p);
    PyBuffer_Release(&cards);
    if (part == LAST)
        return Py_BuildValue("LLL", (long long)p.now, (long long)later(landed, p.now), (long long)p.queue_ns);
    return PyErr_Format(PyExc_ValueError, "a transfer names what is not there");
}

static PyObject *bytes_of(const void *rows, int64_t count, size_t size) {
    return PyBytes_FromStringAndSize(rows, (Py_ssize_t)(count * (int64_t)size));
}

/* blocked() -> [(rank, stream, record, doorbell or -1)]: the streams that had not ended when the run did */
static PyObject *Simulation_blocked(Simulation *self, PyObject *unused) {
    const simulation *v = &self->v;
    PyObject *found = PyList_New(0);
    (void)unused;
    for (int64_t id = 0; found && id < (int64_t)v->model.rank_count * MAX_STREAMS; id++) {
        const stream *s = &v->streams[id];
        if (s->at == s->length) continue;
        PyObject *row = Py_BuildValue("iiLi", s->rank, (int)(id % MAX_STREAMS), (long long)s->at, s->doorbell);
        if (!row || PyList_Append(found, row) < 0) Py_CLEAR(found);
        Py_XDECREF(row);
    }
    return found;
}

/* seen() -> statistics and logs, each a table as bytes: see engines/virtual.py */
static PyObject *Simulation_seen(Simulation *self, PyObject *unused) {
    const simulation *v = &self->v;
    (void)unused;
    PyObject *calls = PyList_New(0), *exposed = bytes_of(NULL, v->model.rank_count, sizeof(int64_t)),
             *tiles = bytes_of(NULL, v->model.rank_count, sizeof(int64_t));
    for (int64_t k = 0; calls && k < v->call_count; k++) {
        const virtual_call *c = &v->calls[k];
        PyObject *row = Py_BuildValue("NN", bytes_of(c->begin_ns, c->members, sizeof(int64_t)),
                                      bytes_of(c->end_ns, c->members, sizeof(int64_t)));
        if (!row || PyList_Append(calls, row) < 0) Py_CLEAR(calls);
        Py_XDECREF(row);
    }
    for (int32_t k = 0; exposed && tiles && k < v->model.rank_count; k++) {
        memcpy(PyBytes_AS_STRING(exposed) + (size_t)k * sizeof(int64_t), &v->ranks[k].exposed_ns, sizeof(int64_t));
        memcpy(PyBytes_AS_STRING(tiles) + (size_t)k * sizeof(int64_t), &v->ranks[k].tiles_ns, sizeof(int64_t));
    }
    if (!calls || !exposed || !tiles) {
        Py_XDECREF(calls), Py_XDECREF(exposed), Py_XDECREF(tiles);
        return NULL;
    }
    return Py_BuildValue("{sN sN sN sN sN sN sN sL}", "calls", calls, "exposed", exposed, "tiles", tiles, "resources",
                         bytes_of(v->model.resources, v->model.resource_count, sizeof(resource)), "ops",
                         bytes_of(v->ops, OP_END, sizeof(op_total)), "log",
                         bytes_of(v->log, v->log_length, sizeof(executed)), "reserved",
                         bytes_of(v->log_reserved, v->reserved_length, sizeof(reserved)), "steps", (long long)v->steps);
}

/* repacked(records) -> (how many bytes they take in a simulation, the records as they come out of these) */
static PyObject *repacked(PyObject *module, PyObject *table) {
    program_stream its = {0};
    Py_buffer rows;
    int64_t nbytes = 0;
    (void)module;
    if (PyObject_GetBuffer(table, &rows, PyBUF_C_CONTIGUOUS) < 0) return NULL;
    its.length = rows.len / (Py_ssize_t)sizeof(record), its.records = packed_make(rows.buf, its.length, &nbytes);
    PyBuffer_Release(&rows);
    PyObject *out = its.records ? PyBytes_FromStringAndSize(NULL, its.length * (Py_ssize_t)sizeof(record)) : NULL;
    packed_place at = packed_begin(its.records);
    for (int64_t k = 0; out && k < its.length; k++, packed_next(&at)) {
        const record i = packed_record(&at);
        memcpy(PyBytes_AS_STRING(out) + (size_t)k * sizeof i, &i, sizeof i);
    }
    free(its.records);
    if (!out) return PyErr_NoMemory();
    return Py_BuildValue("LN", (long long)nbytes, out);
}

static PyMethodDef functions[] = {
    {"repacked", repacked, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};

static PyMethodDef simulation_methods[] = {
    {"communicator", (PyCFunction)Simulation_communicator, METH_VARARGS,
     "communicator(layout, cards, epochs, used) -> its number; cards: which of the model's each of the layout's is; "
     "used: how many of the epochs are over"},
    {"call", (PyCFunction)Simulation_call, METH_VARARGS, NULL},
    {"run", (PyCFunction)Simulation_run, METH_VARARGS, NULL},
    {"begin", (PyCFunction)Simulation_begin, METH_VARARGS, NULL},
    {"advance", (PyCFunction)Simulation_advance, METH_VARARGS, NULL},
    {"transfer", (PyCFunction)Simulation_transfer, METH_VARARGS, NULL},
    {"blocked", (PyCFunction)Simulation_blocked, METH_NOARGS, NULL},
    {"seen", (PyCFunction)Simulation_seen, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyTypeObject SimulationType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "cxlemu._virtual.Simulation",
    .tp_doc = "Calls of plans on a modelled fabric.",
    .tp_basicsize = sizeof(Simulation),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = PyType_GenericNew,
    .tp_init = (initproc)Simulation_init,
    .tp_dealloc = (destructor)Simulation_dealloc,
    .tp_methods = simulation_methods,
};

static struct PyModuleDef virtual_module = {
    PyModuleDef_HEAD_INIT, .m_name = "cxlemu._virtual", .m_doc = "The virtual engine's core.",
    .m_size = -1,          .m_methods = functions,
};

static const constant constants[] = {
    CONSTANT(OVER),   CONSTANT(DEADLOCK), CONSTANT(BAD_RECORD), CONSTANT(TOO_LONG),
    CONSTANT(NO_WAY), CONSTANT(PAUSED),   CONSTANT(MAX_HOPS),
};

PyMODINIT_FUNC PyInit__virtual(void) {
    PyObject *module = make_module(&virtual_module);
    if (module && (PyModule_AddType(module, &SimulationType) < 0 ||
                   add_constants(module, constants, sizeof constants / sizeof *constants) < 0))
        Py_CLEAR(module);
    return module;
}
