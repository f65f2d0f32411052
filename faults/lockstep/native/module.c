/* faults.lockstep._world: binds the world in C, whose buffers are NumPy's. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "interpreter.h"
#include "constants.h"
#include "layout_module.h"
#include "told_module.h"
#include "world.h"

#include <string.h>

enum { RANKS_MAX = 1 << 12, EVENTS_MAX = 1 << 20 };

/* --- Script: a plan, checked ----------------------------------------------------------------------------------------- */

typedef struct {
    PyObject_HEAD layout layout;
    int64_t base;
    int32_t ranks;
    script its;
    PyObject *kept; /* the memoryviews of records and tables */
} Script;

/* Return the array's bytes, which stay held as long as the list of views; NULL with an exception unless they are whole items. */
static const void *array_of(PyObject *kept, PyObject *object, size_t item, int64_t *count) {
    PyObject *view = PyMemoryView_FromObject(object);
    if (!view) return NULL;
    const Py_buffer *buffer = PyMemoryView_GET_BUFFER(view);
    const bool right = PyBuffer_IsContiguous(buffer, 'C') && buffer->len % (Py_ssize_t)item == 0;
    if (!right) PyErr_SetString(PyExc_ValueError, "an array has no whole items in a row");
    *count = buffer->len / (Py_ssize_t)item;
    const void *bytes = buffer->buf ? buffer->buf : kept; /* an empty array may have no address */
    if (PyList_Append(kept, view) < 0) bytes = NULL;
    Py_DECREF(view);
    return right ? bytes : NULL;
}

/* Take in a rank's part: number of events, bytes of its buffers, its streams, and its told places or None. */
static bool part_in(Script *self, int32_t rank, PyObject *described) {
    program *const part = &self->its.part[rank];
    PyObject *sizes, *streams, *told;
    int64_t count;
    if (!PyArg_ParseTuple(described, "iOO!O", &part->event_count, &sizes, &PyList_Type, &streams, &told)) return false;
    if (told != Py_None && told_take(told, part) < 0) return false;
    const int64_t *const bytes = array_of(self->kept, sizes, sizeof *bytes, &count);
    if (!bytes) return false;
    if (count > MAX_BUFFERS || PyList_GET_SIZE(streams) > MAX_STREAMS || part->event_count < 0 ||
        part->event_count > EVENTS_MAX)
        return REFUSE("a rank has too many buffers, streams or events");
    part->buffer_count = (int32_t)count, part->stream_count = (int32_t)PyList_GET_SIZE(streams);
    memcpy(part->buffer_bytes, bytes, (size_t)count * sizeof *bytes);
    for (int32_t s = 0; s < part->stream_count; s++)
        if (!(part->records[s] = array_of(self->kept, PyList_GET_ITEM(streams, s), sizeof(record), &part->lengths[s])))
            return false;
    int32_t stream;
    int64_t at;
    if (program_check(part, &stream, &at)) return true;
    PyErr_Format(PyExc_ValueError, "rank %d, stream %d, instruction %lld is none that could be executed", (int)rank,
                 (int)stream, (long long)at);
    return false;
}

/* Script(layout, base, regions, groups, [(events, buffer bytes, [records])]) */
static int Script_init(Script *self, PyObject *args, PyObject *Py_UNUSED(kwargs)) {
    PyObject *shape, *regions, *groups, *parts;
    long long base;
    int64_t region_count, group_count;
    if (self->kept) return RAISED(PyExc_RuntimeError, "a Script is made once");
    if (!PyArg_ParseTuple(args, "OLOOO!", &shape, &base, &regions, &groups, &PyList_Type, &parts) ||
        layout_take(shape, &self->layout) < 0)
        return -1;
    const int32_t ranks = self->layout.ranks, cards = self->layout.cards;
    if (ranks < 1 || ranks > RANKS_MAX || cards < 1 || cards > MAX_CARDS || PyList_GET_SIZE(parts) != ranks)
        return RAISED(PyExc_ValueError, "a plan has a part for every rank, and neither too many of them nor of cards");
    if (!(self->kept = PyList_New(0)) || !(self->its.part = PyMem_Calloc((size_t)ranks, sizeof *self->its.part)))
        return PyErr_NoMemory(), -1;
    self->base = base, self->ranks = ranks;
    const region *const r = array_of(self->kept, regions, sizeof *r, &region_count);
    const group *const g = r ? array_of(self->kept, groups, sizeof *g, &group_count) : NULL;
    if (!g) return -1;
    if (region_count > INT32_MAX || group_count > INT32_MAX) return PyErr_NoMemory(), -1;
    for (int32_t rank = 0; rank < ranks; rank++) {
        program *const part = &self->its.part[rank];
        part->layout = self->layout, part->base = base, part->card_count = cards;
        part->regions = r, part->region_count = (int32_t)region_count;
        part->groups = g, part->group_count = (int32_t)group_count;
        if (!part_in(self, rank, PyList_GET_ITEM(parts, rank))) return -1;
    }
    return 0;
}

static void Script_dealloc(Script *self) {
    for (int32_t rank = 0; self->its.part && rank < self->ranks; rank++) told_free(self->its.part[rank].told);
    PyMem_Free(self->its.part);
    Py_XDECREF(self->kept);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyTypeObject script_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "faults.lockstep._world.Script",
    .tp_doc = "A plan's records and tables, checked.",
    .tp_basicsize = sizeof(Script),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = PyType_GenericNew,
    .tp_init = (initproc)Script_init,
    .tp_dealloc = (destructor)Script_dealloc,
};

/* --- World ------------------------------------------------------------------------------------------------------------ */

typedef struct {
    PyObject_HEAD world w;
    bool made, busy;
    int32_t calls; /* of the last run */
} World;

/* World(layout, base, hosts): the number of each rank's host, from 0 on without gaps. */
static int World_init(World *self, PyObject *args, PyObject *Py_UNUSED(kwargs)) {
    PyObject *shape;
    Py_buffer hosts;
    long long base;
    if (self->made) return RAISED(PyExc_RuntimeError, "a World is made once");
    if (!PyArg_ParseTuple(args, "OLy*", &shape, &base, &hosts)) return -1;
    world *const w = &self->w;
    const int32_t *const host_of = hosts.buf;
    bool right = layout_take(shape, &w->layout) == 0;
    if (right) {
        const layout *const l = &w->layout;
        right = l->ranks >= 1 && l->ranks <= RANKS_MAX && l->cards >= 1 && l->cards <= MAX_CARDS && base >= 0 &&
                base <= 1 << 30 && base % LINE_BYTES == 0 && l->extent_bytes >= 0 &&
                l->extent_bytes <= (int64_t)1 << 40 && hosts.len == l->ranks * (Py_ssize_t)sizeof *host_of;
        for (int32_t rank = 0; right && rank < l->ranks; rank++) {
            right = host_of[rank] >= 0 && host_of[rank] < l->ranks;
            if (right && host_of[rank] >= w->hosts) w->hosts = host_of[rank] + 1;
        }
        if (!right) PyErr_SetString(PyExc_ValueError, "the layout is none, or the hosts are not those of its ranks");
    }
    if (right) {
        w->base = base, w->ranks = w->layout.ranks;
        right = self->made = world_make(w, host_of);
        if (!right) PyErr_NoMemory();
    }
    PyBuffer_Release(&hosts);
    return right ? 0 : -1;
}

static void World_dealloc(World *self) {
    world_free(&self->w);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

/* What a run has of Python. */
typedef struct {
    World *self;
    PyObject *ended, *kernel;
    const call *calls;
    uint8_t **buffers;
    const uint8_t *right; /* what ranks must get */
    const int64_t *right_at; /* by call and rank: where it is; UNKNOWN, UNCHECKED */
} asking;

enum { UNKNOWN = -1, UNCHECKED = -2 };

static bool called(PyObject *result) {
    Py_XDECREF(result);
    return result != NULL;
}

static bool ask_ended(void *of, int32_t number, int32_t rank) {
    const asking *const a = of;
    const int64_t row = (int64_t)number * a->self->w.ranks + rank, at = a->right_at[row];
    if (at == UNCHECKED) return true;
    const size_t nbytes = (size_t)a->calls[number].plan->part[rank].buffer_bytes[1];
    if (at >= 0 && memcmp(a->buffers[row * MAX_BUFFERS + 1], a->right + at, nbytes) == 0) return true;
    return called(PyObject_CallFunction(a->ended, "ii", (int)number, (int)rank));
}

static bool ask_kernel(void *of, int32_t number, int32_t rank, int32_t stream, int64_t at) {
    const asking *const a = of;
    return called(PyObject_CallFunction(a->kernel, "iiiL", (int)number, (int)rank, (int)stream, (long long)at));
}

static bool ask_look(void *Py_UNUSED(of)) { return PyErr_CheckSignals() == 0; }

enum { ARENA, OFFSETS, IMAGE, RIGHT, RIGHT_AT, PRIORITY, BLOWS, VIEWS };

static bool fits(const World *self, const Py_buffer *v, const blow *blows, int64_t blow_count, int64_t calls) {
    const world *const w = &self->w;
    const int64_t rows = calls * w->ranks;
    bool good = v[ARENA].len == v[IMAGE].len && v[OFFSETS].len == rows * MAX_BUFFERS * 8 &&
                v[RIGHT_AT].len == rows * 8 && v[PRIORITY].len == (int64_t)w->ranks * MAX_STREAMS * 4;
    for (int64_t k = 0; good && k < blow_count; k++) {
        const blow *const b = &blows[k];
        good = b->action >= 0 && b->action < ACTIONS && b->host >= 0 && b->host < w->hosts && b->card >= 0 &&
               b->card < w->layout.cards && b->line >= 0 && b->line < w->card_bytes / LINE_BYTES;
    }
    if (!good) PyErr_SetString(PyExc_ValueError, "buffers, priorities and moves of nature do not fit the world");
    return good;
}

/* Take in calls: [(script, epoch, tag)]. */
static bool calls_in(const World *self, PyObject *list, call *calls) {
    for (Py_ssize_t k = 0; k < PyList_GET_SIZE(list); k++) {
        Script *plan;
        long long epoch;
        unsigned short tag;
        if (!PyArg_ParseTuple(PyList_GET_ITEM(list, k), "O!LH", &script_type, &plan, &epoch, &tag)) return false;
        if (!plan->its.part || memcmp(&plan->layout, &self->w.layout, sizeof plan->layout) ||
            plan->base != self->w.base || epoch < 0 || epoch >= EPOCHS_END)
            return REFUSE("a plan has another layout than the world, or begins too late");
        calls[k] = (call){&plan->its, epoch, tag};
    }
    return true;
}

/* Find every buffer in the arena. */
static bool buffers_in(const World *self, const Py_buffer *v, const call *calls, int64_t count, uint8_t **buffers) {
    const int64_t *const offsets = v[OFFSETS].buf, *const right_at = v[RIGHT_AT].buf;
    bool good = true;
    for (int64_t row = 0; good && row < count * self->w.ranks; row++) {
        const program *const part = &calls[row / self->w.ranks].plan->part[row % self->w.ranks];
        for (int k = 0; good && k < part->buffer_count; k++) {
            const int64_t at = offsets[row * MAX_BUFFERS + k];
            good = at >= 0 && part->buffer_bytes[k] <= v[ARENA].len && at <= v[ARENA].len - part->buffer_bytes[k];
            buffers[row * MAX_BUFFERS + k] = (uint8_t *)v[ARENA].buf + at;
        }
        if (right_at[row] >= 0)
            good = good && part->buffer_count > 1 && part->buffer_bytes[1] <= v[RIGHT].len &&
                   right_at[row] <= v[RIGHT].len - part->buffer_bytes[1];
    }
    if (!good) PyErr_SetString(PyExc_ValueError, "a buffer lies outside of the arena");
    return good;
}

/* Return (status, [(call, rank, stream, at, doorbell, wanted, shows)]): all that is stuck, or where something happened. */
static PyObject *told(const world *w, int status) {
    PyObject *places = PyList_New(0);
    const bool placed = status != DONE && status != SPENT;
    for (int32_t k = 0; places && placed && k < (status == STUCK ? w->choices : 1); k++) {
        const int32_t code = w->choice[k];
        const obstacle *const o = &w->why[code];
        const int32_t rank = code / MAX_STREAMS;
        PyObject *const one = Py_BuildValue("(iiiLiLL)", (int)w->turn[rank], (int)rank, (int)o->stream,
                                            (long long)o->at, (int)o->doorbell, (long long)o->wanted,
                                            (long long)o->shows);
        if (!one || PyList_Append(places, one) < 0) Py_CLEAR(places);
        Py_XDECREF(one);
    }
    return places ? Py_BuildValue("(iN)", status, places) : NULL;
}

/* run(calls, arena, offsets, image, right, right_at, priority, blows, end_s, ended, kernel) -> see told */
static PyObject *World_run(World *self, PyObject *args) {
    PyObject *list, *result = NULL;
    Py_buffer v[VIEWS] = {{0}};
    asking a = {.self = self};
    double end_s;
    if (!PyArg_ParseTuple(args, "O!w*y*y*y*y*y*y*dOO", &PyList_Type, &list, &v[ARENA], &v[OFFSETS], &v[IMAGE],
                          &v[RIGHT], &v[RIGHT_AT], &v[PRIORITY], &v[BLOWS], &end_s, &a.ended, &a.kernel))
        return NULL;
    const Py_ssize_t count = PyList_GET_SIZE(list);
    const int64_t *const row = v[BLOWS].buf;
    const int64_t blow_count = v[BLOWS].len / 32;
    call *const calls = PyMem_Calloc((size_t)count + 1, sizeof *calls);
    blow *const blows = PyMem_Calloc((size_t)blow_count + 1, sizeof *blows);
    uint8_t **const buffers = PyMem_Calloc((size_t)count * (size_t)self->w.ranks * MAX_BUFFERS + 1, sizeof *buffers);
    for (int64_t k = 0; blows && k < blow_count; k++) {
        const int64_t *const b = row + 4 * k;
        const bool small = b[0] < ACTIONS && b[1] < RANKS_MAX && b[2] < MAX_CARDS;
        blows[k] = small ? (blow){(int32_t)b[0], (int32_t)b[1], (int32_t)b[2], b[3]} : (blow){-1, 0, 0, 0};
    }
    if (!self->made || self->busy) PyErr_SetString(PyExc_RuntimeError, "the world was never made, or it runs");
    else if (!calls || !blows || !buffers || count > INT32_MAX) PyErr_NoMemory();
    else if (fits(self, v, blows, blow_count, count) && calls_in(self, list, calls) &&
             buffers_in(self, v, calls, count, buffers)) {
        const order by = {v[PRIORITY].buf, blows, blow_count};
        const asked ask = {&a, ask_ended, ask_kernel, ask_look};
        a.calls = calls, a.buffers = buffers, a.right = v[RIGHT].buf, a.right_at = v[RIGHT_AT].buf;
        memcpy(v[ARENA].buf, v[IMAGE].buf, (size_t)v[ARENA].len);
        self->busy = true, self->calls = (int32_t)count;
        const int status = world_run(&self->w, calls, (int32_t)count, buffers, &by, end_s, &ask);
        self->busy = false;
        if (status == OUT_OF_MEMORY) PyErr_NoMemory();
        else if (status != RAISED) result = told(&self->w, status);
    }
    PyMem_Free(calls), PyMem_Free(blows), PyMem_Free(buffers);
    for (int k = 0; k < VIEWS; k++) PyBuffer_Release(&v[k]);
    return result;
}

/* moves(steps, blows): the moves of the last run, of these objects: a step's by rank and stream, a blow's by its number. */
static PyObject *World_moves(World *self, PyObject *args) {
    PyObject *steps, *blows;
    if (!PyArg_ParseTuple(args, "O!O!", &PyList_Type, &steps, &PyList_Type, &blows)) return NULL;
    PyObject *const all = PyTuple_New(self->w.move_count);
    for (int64_t k = 0; all && k < self->w.move_count; k++) {
        const int32_t move = self->w.moves[k];
        PyObject *const from = move < 0 ? blows : steps;
        const Py_ssize_t at = move < 0 ? -1 - (Py_ssize_t)move : move;
        if (at >= PyList_GET_SIZE(from)) {
            PyErr_SetString(PyExc_ValueError, "there are more moves than those");
            Py_DECREF(all);
            return NULL;
        }
        PyTuple_SET_ITEM(all, k, Py_NewRef(PyList_GET_ITEM(from, at)));
    }
    return all;
}

/* spans(call): by rank, when its first and its last instruction of the call was done, on a clock of all ranks; -1: never. */
static PyObject *World_spans(World *self, PyObject *argument) {
    const long number = PyLong_AsLong(argument);
    if (PyErr_Occurred()) return NULL;
    if (number < 0 || number >= self->calls) return PyErr_Format(PyExc_ValueError, "there was no call %ld", number);
    PyObject *const all = PyList_New(self->w.ranks);
    for (int32_t rank = 0; all && rank < self->w.ranks; rank++) {
        const int64_t row = (int64_t)number * self->w.ranks + rank;
        PyObject *const one = Py_BuildValue("(LL)", (long long)self->w.first[row], (long long)self->w.last[row]);
        if (!one) {
            Py_DECREF(all);
            return NULL;
        }
        PyList_SET_ITEM(all, rank, one);
    }
    return all;
}

static PyMethodDef world_methods[] = {
    {"run", (PyCFunction)World_run, METH_VARARGS, NULL},
    {"moves", (PyCFunction)World_moves, METH_VARARGS, NULL},
    {"spans", (PyCFunction)World_spans, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};

static PyTypeObject world_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "faults.lockstep._world.World",
    .tp_doc = "Ranks on hosts around one communicator's part of the cards, in one thread.",
    .tp_basicsize = sizeof(World),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = PyType_GenericNew,
    .tp_init = (initproc)World_init,
    .tp_dealloc = (destructor)World_dealloc,
    .tp_methods = world_methods,
};

/* --- the module --------------------------------------------------------------------------------------------------------- */

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "faults.lockstep._world",
    .m_doc = "Lockstep in C.",
};

static const constant constants[] = {
    CONSTANT(MAX_STREAMS), CONSTANT(MAX_BUFFERS), CONSTANT(DONE),    CONSTANT(STUCK),     CONSTANT(SPENT),
    CONSTANT(MISMATCH),    CONSTANT(DAMAGED),     CONSTANT(UNKNOWN), CONSTANT(UNCHECKED),
};

PyMODINIT_FUNC PyInit__world(void) {
    PyObject *module = make_module(&definition);
    if (module && (add_constants(module, constants, sizeof constants / sizeof *constants) < 0 ||
                   PyModule_AddType(module, &script_type) < 0 || PyModule_AddType(module, &world_type) < 0))
        Py_CLEAR(module);
    return module;
}
