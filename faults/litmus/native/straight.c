/* The module faults.litmus._straight: one rank's part of small programs without branches, which `cxlemu litmus --backend` executes many times on
 * the cards themselves, as the machine's own instructions. faults/machine/steps.py defines what each step means; this
 * file maps steps to instructions.
 *
 * Every rank has two lines of its own on card 0: its count of meetings, and a mark of where it waits. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "interpreter.h"
#include "core.h"
#include "idle.h"
#include "lines.h"

#include <stdatomic.h>
#include <string.h>

/* The values of Do in faults/machine/program.py that a straight program may have. */
enum do_what { STORE = 1, STORE_NT, FLUSH_DROP, FLUSH_KEEP, FENCE_ALL, DROP, LOAD, RING, LOOK };
enum { RANKS_MAX = 64, STUCK_MAX = 2, READS_MAX = 100, WINDOW_NS = 20000000, LONG_NAP_NS = 1000000 };

typedef struct {
    int64_t what, place, value, reg; /* place: a word's number, or a line's for steps on whole lines */
} step;

/* Where a rank waits, and how often it has looked in vain. A mark is one word, which other ranks never see
 * half-written. */
typedef struct {
    uint32_t trial;
    uint16_t wait, looks;
} mark;

typedef struct {
    PyObject_HEAD Py_buffer cards[MAX_CARDS];
    int card_count, rank, ranks;
    int64_t card_bytes, control, spins;
    PyObject *look; /* Python's function that is called while nothing progresses; it raises to give up */
    uint64_t meetings;
    uint32_t trial; /* the first trial, counted over all runs, that this rank has not ended */
    mark mine, seen[RANKS_MAX];
    bool busy;
} Straight;

static uint8_t *at_address(const Straight *self, int64_t address) {
    return (uint8_t *)self->cards[address / self->card_bytes].buf + address % self->card_bytes;
}

static _Atomic uint64_t *control_word(const Straight *self, int rank, int which) {
    return (_Atomic uint64_t *)(void *)((uint8_t *)self->cards[0].buf + self->control +
                                        (2 * rank + which) * (int64_t)LINE_BYTES);
}

static void ring(_Atomic uint64_t *word, uint64_t value) {
    atomic_store_explicit(word, value, memory_order_release);
    lines_flush((const void *)word, 8, 0);
}

static uint64_t shown(_Atomic uint64_t *word) {
    lines_invalidate((const void *)word, 8);
    return atomic_load_explicit(word, memory_order_acquire);
}

/* --- waits ------------------------------------------------------------------------------------------------------ */

/* After a window of time without news, show the other ranks where this one waits, and call `look`. Return whether to go
 * on; if not, `look` has raised. The caller does not hold the GIL. */
static bool goes_on(Straight *self, PyThreadState **state) {
    self->mine.trial = self->trial, self->mine.looks++;
    uint64_t word;
    memcpy(&word, &self->mine, sizeof word);
    ring(control_word(self, self->rank, 1), word);
    lines_fence();
    PyEval_RestoreThread(*state);
    PyObject *done = PyObject_CallNoArgs(self->look);
    Py_XDECREF(done);
    *state = PyEval_SaveThread();
    return done != NULL;
}

static mark mark_of(const Straight *self, int rank) {
    const uint64_t word = shown(control_word(self, rank, 1));
    mark its;
    memcpy(&its, &word, sizeof its);
    return its;
}

/* Return whether no other rank can end this rank's wait any more: each has ended this trial, or has stayed in one wait
 * of it and looked in vain since this rank first saw it there. That takes two more looks than were seen then, as the
 * first of them may have been under way. */
static bool stuck(Straight *self, bool first) {
    bool all = true;
    for (int rank = 0; rank < self->ranks; rank++) {
        if (rank == self->rank) continue;
        const mark its = mark_of(self, rank), before = self->seen[rank];
        if ((int32_t)(its.trial - self->trial) > 0) continue;
        const bool same = !first && its.trial == self->trial && its.trial == before.trial && its.wait == before.wait;
        if (!same) self->seen[rank] = its;
        if (!same || (uint16_t)(its.looks - before.looks) < 2) all = false;
    }
    return all && !first;
}

enum waited { CAME, NEVER, GIVEN_UP };

static enum waited wait_for(Straight *self, _Atomic uint64_t *word, uint64_t value, PyThreadState **state) {
    self->mine.wait++;
    idling since = {0};
    for (int windows = 0;;) {
        if (shown(word) >= value) return CAME;
        if (idle(&since, WINDOW_NS, self->spins, INT64_MAX, false)) continue;
        since = (idling){0};
        if (!goes_on(self, state)) return GIVEN_UP;
        if (stuck(self, !windows++)) return NEVER;
    }
}

static void enter_meeting(Straight *self, uint64_t meetings) {
    lines_fence();
    ring(control_word(self, self->rank, 0), self->meetings += meetings);
}

/* Wait until all ranks have entered as many meetings as this one. Return false where `look` raised. */
static bool meet(Straight *self, PyThreadState **state) {
    enter_meeting(self, 1);
    self->mine.wait++;
    for (int rank = 0; rank < self->ranks; rank++) {
        idling since = {0};
        for (int windows = 0; shown(control_word(self, rank, 0)) < self->meetings;) {
            if (windows > 1) nap(LONG_NAP_NS);
            if (idle(&since, WINDOW_NS, self->spins, INT64_MAX, false)) continue;
            since = (idling){0}, windows++;
            if (!goes_on(self, state)) return false;
        }
    }
    return true;
}

/* --- trials ----------------------------------------------------------------------------------------------------- */

typedef struct {
    const step *steps;
    int64_t step_count, trials, lines, words, registers;
    const int64_t *addresses; /* [trial][line] */
    const int64_t *slots; /* [word]: its line, and its number in the line */
    const uint16_t *pauses; /* [trial][step] */
    const uint8_t *meets; /* [trial]: whether all ranks meet before it */
    int64_t *seen; /* [trial][register] */
    uint8_t *hung; /* [trial] */
    bool drain; /* other ranks share this one's host, so its stores have to leave the store buffer at once */
} work;

static uint8_t *word_at(const Straight *self, const work *w, int64_t trial, int64_t word, int64_t turn) {
    const int64_t *slot = w->slots + 2 * word;
    return at_address(self, w->addresses[trial * w->lines + slot[0]]) + (slot[1] + turn) % (LINE_BYTES / 8) * 8;
}

/* Return by how many words all lines of a trial are rotated. */
static int64_t turn_of(const work *w, int64_t trial) { return w->addresses[w->trials * w->lines + trial]; }

static enum waited one_trial(Straight *self, const work *w, int64_t trial, PyThreadState **state) {
    const int64_t turn = turn_of(w, trial);
    for (int64_t k = 0; k < w->step_count; k++) {
        const step *s = w->steps + k;
        for (uint16_t left = w->pauses[trial * w->step_count + k]; left; left--) PAUSE();
        const bool takes_line = s->what == FLUSH_DROP || s->what == FLUSH_KEEP || s->what == DROP;
        uint8_t *at = s->what == FENCE_ALL ? NULL
                      : takes_line         ? at_address(self, w->addresses[trial * w->lines + s->place])
                                           : word_at(self, w, trial, s->place, turn);
        _Atomic uint64_t *word = (_Atomic uint64_t *)(void *)at;
        atomic_signal_fence(memory_order_seq_cst); /* the compiler keeps the steps in order; the machine need not */
        switch (s->what) {
        case STORE: atomic_store_explicit(word, (uint64_t)s->value, memory_order_relaxed); break;
        case STORE_NT: lines_store_nt(at, (uint64_t)s->value); break;
        case FLUSH_DROP: lines_flush(at, LINE_BYTES, 0); break;
        case FLUSH_KEEP: lines_flush(at, LINE_BYTES, 1); break;
        case FENCE_ALL: lines_fence(); break;
        case DROP: lines_invalidate(at, LINE_BYTES); break;
        case LOAD:
            w->seen[trial * w->registers + s->reg] = (int64_t)atomic_load_explicit(word, memory_order_relaxed);
            break;
        case RING: ring(word, (uint64_t)s->value); break;
        case LOOK: {
            const enum waited how = wait_for(self, word, (uint64_t)s->value, state);
            if (how != CAME) return how;
        }
        }
        if (w->drain && (s->what == STORE || s->what == RING)) atomic_thread_fence(memory_order_seq_cst);
        atomic_signal_fence(memory_order_seq_cst);
    }
    return CAME;
}

/* Run the trials. Return how many were made, or -1 where `look` raised. A trial that hangs takes long, so the rest is
 * left out after STUCK_MAX of them. A rank without steps enters all meetings at once, and delays no other rank. */
static int64_t all_trials(Straight *self, const work *w, PyThreadState **state) {
    int64_t trial = w->step_count ? 0 : w->trials;
    const uint32_t first = self->trial;
    for (int stuck_ones = 0; trial < w->trials && stuck_ones < STUCK_MAX; trial++) {
        self->trial = first + (uint32_t)trial;
        if (w->meets[trial] && !meet(self, state)) return -1;
        switch (one_trial(self, w, trial, state)) {
        case CAME: break;
        case NEVER: w->hung[trial] = 1, stuck_ones++; break;
        case GIVEN_UP: return -1;
        }
    }
    uint64_t left_out = 0;
    for (int64_t k = w->step_count ? trial : 0; k < w->trials; k++) left_out += w->meets[k] != 0;
    if (left_out) enter_meeting(self, left_out);
    self->trial = first + (uint32_t)w->trials;
    return trial;
}

/* --- the lines before and after --------------------------------------------------------------------------------- */

static void clean(const Straight *self, const work *w) {
    for (int64_t k = 0; k < w->trials * w->lines; k++) lines_invalidate(at_address(self, w->addresses[k]), LINE_BYTES);
}

static void put(const Straight *self, const work *w, const int64_t *initial) {
    for (int64_t k = 0; k < w->trials * w->lines; k++) memset(at_address(self, w->addresses[k]), 0, LINE_BYTES);
    for (int64_t trial = 0; trial < w->trials; trial++)
        for (int64_t word = 0; word < w->words; word++)
            memcpy(word_at(self, w, trial, word, turn_of(w, trial)), &initial[word], 8);
    for (int64_t k = 0; k < w->trials * w->lines; k++) lines_flush(at_address(self, w->addresses[k]), LINE_BYTES, 0);
    lines_fence();
}

/* Read the words of a trial from the pool. A line may leave another host's cache meanwhile: read until two reads
 * agree. */
static void get(const Straight *self, const work *w, int64_t trial, int64_t *values) {
    bool same = false;
    for (int left = READS_MAX; left && !same; left--) {
        same = true;
        for (int64_t k = 0; k < w->lines; k++)
            lines_invalidate(at_address(self, w->addresses[trial * w->lines + k]), LINE_BYTES);
        for (int64_t word = 0; word < w->words; word++) {
            const uint8_t *at = word_at(self, w, trial, word, turn_of(w, trial));
            const int64_t value = (int64_t)atomic_load((const _Atomic uint64_t *)(const void *)at);
            if (values[word] != value) same = false, values[word] = value;
        }
    }
}

/* --- Python ----------------------------------------------------------------------------------------------------- */

static int Straight_init(Straight *self, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"cards", "control", "rank", "ranks", "look", "spins", NULL};
    PyObject *cards, *look;
    long long control, spins;
    if (self->card_count) return RAISED(PyExc_RuntimeError, "a Straight is made once");
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OLiiOL", names, &cards, &control, &self->rank, &self->ranks, &look,
                                     &spins))
        return -1;
    PyObject *all = PySequence_Fast(cards, "cards are a sequence");
    if (!all) return -1;
    const Py_ssize_t count = PySequence_Fast_GET_SIZE(all);
    for (Py_ssize_t k = 0; k < count && k < MAX_CARDS; k++, self->card_count++)
        if (PyObject_GetBuffer(PySequence_Fast_GET_ITEM(all, k), &self->cards[k], PyBUF_WRITABLE) < 0) break;
    Py_DECREF(all);
    if (PyErr_Occurred()) return -1;
    bool good = self->card_count && self->card_count == count && self->ranks >= 1 && self->ranks <= RANKS_MAX;
    good = good && self->rank >= 0 && self->rank < self->ranks && control >= 0 && control % LINE_BYTES == 0;
    self->card_bytes = good ? self->cards[0].len : 0;
    for (int k = 0; k < self->card_count; k++)
        good = good && self->cards[k].len == self->card_bytes && (uintptr_t)self->cards[k].buf % LINE_BYTES == 0;
    if (!good || control > self->card_bytes - 2 * self->ranks * (int64_t)LINE_BYTES)
        return RAISED(PyExc_ValueError, "a Straight takes cards of one size in whole lines, with its ranks' lines");
    self->control = control, self->spins = spins, self->look = Py_NewRef(look);
    return 0;
}

static void Straight_dealloc(Straight *self) {
    for (int k = 0; k < self->card_count; k++) PyBuffer_Release(&self->cards[k]);
    Py_XDECREF(self->look);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static bool begins(Straight *self) {
    if (self->busy || !self->look) PyErr_SetString(PyExc_RuntimeError, "a Straight is for one thread at a time");
    else self->busy = true;
    return !PyErr_Occurred();
}

static PyObject *Straight_meet(Straight *self, PyObject *none) {
    (void)none;
    if (!begins(self)) return NULL;
    PyThreadState *state = PyEval_SaveThread();
    const bool met = meet(self, &state);
    PyEval_RestoreThread(state);
    self->busy = false;
    return met ? Py_NewRef(Py_None) : NULL;
}

enum { STEPS_OF, ADDRESSES, SLOTS, PAUSES, MEETS, SEEN, HUNG, BUFFERS };

/* Return whether every step stays within the cards and the buffers. */
static bool fits(const Straight *self, const work *w, const Py_buffer *b) {
    if (w->trials < 0 || w->trials > 1 << 20 || w->lines < 0 || w->lines > 1 << 10 || w->registers < 0) return false;
    if (b[STEPS_OF].len % (Py_ssize_t)sizeof(step) || b[SLOTS].len % 16) return false;
    if (b[ADDRESSES].len != 8 * w->trials * (w->lines + 1) || b[PAUSES].len != 2 * w->trials * w->step_count)
        return false;
    if (b[SEEN].len != 8 * w->trials * w->registers || b[HUNG].len != w->trials) return false;
    for (int64_t k = 0; k < w->trials * w->lines; k++)
        if (w->addresses[k] < 0 || w->addresses[k] % LINE_BYTES ||
            w->addresses[k] / self->card_bytes >= self->card_count)
            return false;
    for (int64_t k = 0; k < w->trials; k++)
        if (turn_of(w, k) < 0 || turn_of(w, k) >= LINE_BYTES / 8) return false;
    for (int64_t k = 0; k < w->words; k++)
        if (w->slots[2 * k] < 0 || w->slots[2 * k] >= w->lines || w->slots[2 * k + 1] < 0 ||
            w->slots[2 * k + 1] >= LINE_BYTES / 8)
            return false;
    for (int64_t k = 0; k < w->step_count; k++) {
        const step *s = w->steps + k;
        const bool line = s->what == FLUSH_DROP || s->what == FLUSH_KEEP || s->what == DROP;
        if (s->what < STORE || s->what > LOOK || (s->what == LOAD && (s->reg < 0 || s->reg >= w->registers)))
            return false;
        if (s->what != FENCE_ALL && (s->place < 0 || s->place >= (line ? w->lines : w->words))) return false;
    }
    return true;
}

/* With `b` held: 0, or -1 with an exception. registers and lines: of a trial. */
static int take_work(const Straight *self, PyObject *const *args, work *w, Py_buffer *b, int *held) {
    static const int writable[BUFFERS] = {0, 0, 0, 0, 0, PyBUF_WRITABLE, PyBUF_WRITABLE};
    for (*held = 0; *held < BUFFERS; ++*held)
        if (PyObject_GetBuffer(args[*held], &b[*held], writable[*held]) < 0) return -1;
    w->lines = PyLong_AsLongLong(args[BUFFERS]), w->registers = PyLong_AsLongLong(args[BUFFERS + 1]);
    w->drain = PyObject_IsTrue(args[BUFFERS + 2]) > 0;
    if (PyErr_Occurred()) return -1;
    w->steps = b[STEPS_OF].buf, w->step_count = b[STEPS_OF].len / (int64_t)sizeof(step);
    w->addresses = b[ADDRESSES].buf, w->slots = b[SLOTS].buf, w->words = b[SLOTS].len / 16;
    w->pauses = b[PAUSES].buf, w->meets = b[MEETS].buf, w->trials = b[MEETS].len;
    w->seen = b[SEEN].buf, w->hung = b[HUNG].buf;
    if (fits(self, w, b)) return 0;
    PyErr_SetString(PyExc_ValueError, "steps, addresses and buffers do not fit each other or the cards");
    return -1;
}

/* run(steps, addresses, slots, pauses, meets, seen, hung, lines, registers, drain, initial) -> trials made.
 * initial: the values that rank 0 stores in the words before any rank begins. */
static PyObject *Straight_run(Straight *self, PyObject *const *args, Py_ssize_t count) {
    if (count != BUFFERS + 4) return PyErr_Format(PyExc_TypeError, "run takes %d arguments", BUFFERS + 4);
    if (!begins(self)) return NULL;
    work w;
    Py_buffer b[BUFFERS], initial = {0};
    int held = 0;
    int64_t made = -1;
    if (!take_work(self, args, &w, b, &held) && !PyObject_GetBuffer(args[BUFFERS + 3], &initial, PyBUF_SIMPLE)) {
        if (initial.len != 8 * w.words) PyErr_SetString(PyExc_ValueError, "there is one initial value of each word");
        else {
            PyThreadState *state = PyEval_SaveThread();
            clean(self, &w); /* lines of earlier trials must not leave a cache after rank 0's stores */
            bool met = meet(self, &state);
            if (met && self->rank == 0) put(self, &w, initial.buf);
            met = met && meet(self, &state);
            if (met) clean(self, &w); /* drop lines that were prefetched meanwhile */
            met = met && meet(self, &state);
            if (met) made = all_trials(self, &w, &state);
            lines_fence();
            PyEval_RestoreThread(state);
        }
    }
    if (initial.obj) PyBuffer_Release(&initial);
    while (held > 0) PyBuffer_Release(&b[--held]);
    self->busy = false;
    return made < 0 ? NULL : PyLong_FromLongLong(made);
}

/* memory(addresses, slots, meets, lines, values): read the words of all trials into values; if values is None, drop
 * their lines from this host's cache. */
static PyObject *Straight_memory(Straight *self, PyObject *args) {
    Py_buffer b[BUFFERS] = {0}, values = {0};
    long long lines;
    PyObject *into, *result = NULL;
    if (!PyArg_ParseTuple(args, "y*y*y*LO", &b[ADDRESSES], &b[SLOTS], &b[MEETS], &lines, &into)) return NULL;
    work w = {.addresses = b[ADDRESSES].buf, .slots = b[SLOTS].buf, .words = b[SLOTS].len / 16, .trials = b[MEETS].len};
    w.lines = lines, b[HUNG].len = w.trials;
    if (!begins(self)) goto end;
    if (into != Py_None && PyObject_GetBuffer(into, &values, PyBUF_WRITABLE) < 0) goto end;
    if (!fits(self, &w, b) || (values.obj && values.len != 8 * w.trials * w.words)) {
        PyErr_SetString(PyExc_ValueError, "addresses, words and values do not fit each other or the cards");
        goto end;
    }
    Py_BEGIN_ALLOW_THREADS
    if (!values.obj) clean(self, &w);
    for (int64_t trial = 0; values.obj && trial < w.trials; trial++)
        get(self, &w, trial, (int64_t *)values.buf + trial * w.words);
    Py_END_ALLOW_THREADS
    result = Py_NewRef(Py_None);
end:
    if (values.obj) PyBuffer_Release(&values);
    PyBuffer_Release(&b[ADDRESSES]), PyBuffer_Release(&b[SLOTS]), PyBuffer_Release(&b[MEETS]);
    self->busy = false;
    return result;
}

static PyObject *Straight_progress(Straight *self, void *nothing) {
    (void)nothing;
    uint64_t sum = 0;
    for (int rank = 0; self->look && rank < self->ranks; rank++) {
        const mark its = mark_of(self, rank);
        sum += shown(control_word(self, rank, 0)) + its.trial + its.wait;
    }
    return PyLong_FromUnsignedLongLong(sum);
}

static PyMethodDef straight_methods[] = {
    {"meet", (PyCFunction)Straight_meet, METH_NOARGS, "meet(): wait until all ranks have come as far."},
    {"run", FAST(Straight_run), NULL},
    {"memory", (PyCFunction)Straight_memory, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef straight_getset[] = {
    {"progress", (getter)Straight_progress, NULL, "Changes when any rank has come further, and not while all wait.",
     NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyTypeObject StraightType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "faults.litmus._straight.Straight",
    .tp_doc = "One rank's part of small programs, executed many times as machine instructions on the cards.",
    .tp_basicsize = sizeof(Straight),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = PyType_GenericNew,
    .tp_init = (initproc)Straight_init,
    .tp_dealloc = (destructor)Straight_dealloc,
    .tp_methods = straight_methods,
    .tp_getset = straight_getset,
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "faults.litmus._straight",
    .m_doc = "Litmus tests as machine instructions.",
};

PyMODINIT_FUNC PyInit__straight(void) {
    PyObject *module = make_module(&definition);
    if (module && PyModule_AddType(module, &StraightType) < 0) Py_CLEAR(module);
    return module;
}
