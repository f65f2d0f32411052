/* The search as a function of Python. Programs and findings are plain tuples, to which core.py gives names. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "interpreter.h"
#include "search.h"

typedef struct {
    PyObject *step, *next; /* the thread's functions in Python */
    PyObject *numbers; /* from a node's name to its number */
} outside_thread;

typedef struct {
    PyThreadState *released;
    outside_thread threads[THREADS_MAX];
    int word_count, register_count, event_count;
    uint16_t *word_line;
    uint8_t *word_slot;
} outside;

static outside *take_lock(search *s) {
    outside *o = s->outside;
    PyEval_RestoreThread(o->released);
    return o;
}

static bool release_lock(search *s, bool result) {
    ((outside *)s->outside)->released = PyEval_SaveThread();
    return result;
}

/* -- nodes */

/* Return the number of a node by its name, and give it one if it is new; NO_NODE where there is an exception, or
 * s->trouble says what there is too much of. */
static uint16_t node_number(search *s, int t, PyObject *name) {
    thread *self = &s->threads[t];
    PyObject *numbers = ((outside *)s->outside)->threads[t].numbers, *known = PyDict_GetItemWithError(numbers, name);
    if (known != NULL) return (uint16_t)PyLong_AsLong(known);
    long long value = PyErr_Occurred() ? -1 : PyLong_AsLongLong(name);
    if (value == -1 && PyErr_Occurred()) return NO_NODE;
    if (self->node_count == NODES_MAX) {
        s->trouble = TOO_MANY_NODES;
        return NO_NODE;
    }
    if (self->node_count == self->node_capacity) {
        uint32_t more = self->node_capacity * 2 + 16;
        if (!table_grow(&self->nodes, more, sizeof *self->nodes)) {
            s->trouble = NO_MEMORY;
            return NO_NODE;
        }
        self->node_capacity = more;
    }
    PyObject *number = PyLong_FromUnsignedLong(self->node_count);
    int failed = number == NULL || PyDict_SetItem(numbers, name, number) < 0;
    Py_XDECREF(number);
    if (failed) return NO_NODE;
    self->nodes[self->node_count] = (node){.name = value, .next = NO_NODE};
    return (uint16_t)self->node_count++;
}

static bool number_of(search *s, long long value, int16_t *number) {
    int found = search_value(s, value);
    *number = (int16_t)found;
    return found >= 0;
}

static bool action_number(search *s, const thread *t, const node *n, uint8_t what, int32_t *number) {
    line_action a = {.what = what, .host = t->host, .rank = t->rank};
    if (what != FLUSH && what != FLUSH_KEEP && what != INVALIDATE) a.word = n->word;
    if (what == STORE || what == STORE_NT || what == SIGNAL || what == WAIT || what == AGAIN) a.value = n->value;
    *number = table_action(&s->lines[n->line], a);
    if (*number < 0) s->trouble = NO_MEMORY;
    return *number >= 0;
}

/* Fill in a node from a Step. Return false where there is an exception, or s->trouble says what there is too much
 * of. */
static bool read_step(search *s, const thread *t, node *n, PyObject *step) {
    const outside *o = s->outside;
    int what;
    long long place, value, into, expect, source;
    if (!PyArg_ParseTuple(step, "iLLLLL", &what, &place, &value, &into, &expect, &source)) return false;
    bool on_line = what == FLUSH || what == FLUSH_KEEP || what == INVALIDATE;
    bool on_word = what == STORE || what == STORE_NT || what == LOAD || what == SIGNAL || what == WAIT;
    bool of_event = what == RECORD || what == AWAIT;
    int bound = on_line ? s->line_count : on_word ? o->word_count : of_event ? o->event_count : INT32_MAX;
    if (what < STORE || what > FAIL) return REFUSE("%d is no step", what);
    if ((on_line || on_word || of_event) && (place < 0 || place >= bound))
        return REFUSE("a step %d is at %lld, not one of the %d there are", what, place, bound);
    if (into >= o->register_count || source >= o->register_count)
        return REFUSE("a step names register %lld of %d", into > source ? into : source, o->register_count);
    int16_t number;
    if (!number_of(s, value, &number)) return false;
    n->what = (uint8_t)what;
    n->value = (uint8_t)number;
    n->reg = (int16_t)(into < 0 ? -1 : into);
    n->source = (int16_t)(source < 0 ? -1 : source);
    n->event = (uint16_t)(of_event ? place : 0);
    n->line = (uint16_t)(on_line ? place : on_word ? o->word_line[place] : 0);
    n->word = on_word ? o->word_slot[place] : 0;
    n->expect = -1;
    if (what == LOAD && expect >= 0 && !number_of(s, expect, &n->expect)) return false;
    bool fine = true;
    if (on_line || on_word) fine = action_number(s, t, n, n->what, &n->action);
    if (fine && two_moves(n->what))
        fine = action_number(s, t, n, FLUSH, &n->flush) && action_number(s, t, n, AGAIN, &n->again);
    if (fine && what == LOAD) fine = action_number(s, t, n, PEEK, &n->peek);
    return fine;
}

static bool fill(search *s, thread *t, uint16_t number) {
    node *n = &t->nodes[number];
    PyObject *step = PyObject_CallFunction(((outside_thread *)t->outside)->step, "L", (long long)n->name);
    if (step == NULL) return false;
    bool fine = step == Py_None || read_step(s, t, n, step);
    Py_DECREF(step);
    n->known = fine;
    return fine;
}

static bool expand(search *s, thread *t, uint16_t number) {
    take_lock(s);
    return release_lock(s, fill(s, t, number));
}

static bool find_next(search *s, thread *t, uint16_t number, uint8_t seen) {
    long long name = t->nodes[number].name, value = t->nodes[number].what == LOAD ? s->values[seen] : 0;
    PyObject *after = PyObject_CallFunction(((outside_thread *)t->outside)->next, "LL", name, value);
    if (after == NULL) return false;
    uint16_t next = node_number(s, (int)(t - s->threads), after);
    Py_DECREF(after);
    node *n = &t->nodes[number];
    if (n->what != LOAD) {
        n->next = next;
        return next != NO_NODE;
    }
    if (n->seen_next == NULL) {
        n->seen_next = malloc((VALUES_MAX + 1) * sizeof *n->seen_next);
        if (n->seen_next == NULL) {
            s->trouble = NO_MEMORY;
            return false;
        }
        memset(n->seen_next, 0xFF, (VALUES_MAX + 1) * sizeof *n->seen_next); /* NO_NODE */
    }
    n->seen_next[seen] = next;
    return next != NO_NODE;
}

static bool follow(search *s, thread *t, uint16_t number, uint8_t seen) {
    take_lock(s);
    return release_lock(s, find_next(s, t, number, seen));
}

static bool pause_for_signals(search *s) {
    take_lock(s);
    return release_lock(s, PyErr_CheckSignals() == 0);
}

/* -- programs */

static bool read_words(search *s, outside *o, PyObject *words, uint8_t *filled) {
    o->word_count = (int)PyTuple_GET_SIZE(words);
    o->word_line = calloc((size_t)o->word_count + 1, sizeof *o->word_line);
    o->word_slot = calloc((size_t)o->word_count + 1, sizeof *o->word_slot);
    if (o->word_line == NULL || o->word_slot == NULL) return PyErr_NoMemory() != NULL;
    for (int k = 0; k < o->word_count; k++) {
        long long line, initial;
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(words, k), "LL", &line, &initial)) return false;
        if (line < 0 || line >= s->line_count) return REFUSE("word %d is on line %lld of %d", k, line, s->line_count);
        if (filled[line] == WORDS_MAX) return REFUSE("line %lld has more than %d words", line, WORDS_MAX);
        o->word_line[k] = (uint16_t)line;
        o->word_slot[k] = filled[line]++;
        s->initial[line][o->word_slot[k]] = initial;
    }
    return true;
}

static bool begin_lines(search *s, const uint8_t *filled) {
    for (int line = 0; line < s->line_count; line++) {
        content data = {0};
        for (int k = 0; k < filled[line]; k++) {
            int16_t number;
            if (!number_of(s, s->initial[line][k], &number))
                return REFUSE("a program has at most %d different values", VALUES_MAX + 1);
            data[k] = (uint8_t)number;
        }
        if (!table_begin(&s->lines[line], &s->w, data, filled[line])) return PyErr_NoMemory() != NULL;
    }
    return true;
}

static bool read_thread(search *s, outside *o, int t, PyObject *item) {
    thread *self = &s->threads[t];
    outside_thread *known = &o->threads[t];
    long long host, rank, length;
    PyObject *first, *step, *next;
    if (!PyArg_ParseTuple(item, "LLO!LOO", &host, &rank, &PyLong_Type, &first, &length, &step, &next)) return false;
    if (host < 0 || host >= HOSTS_MAX || rank < 0 || rank >= RANKS_MAX)
        return REFUSE("thread %d is rank %lld on host %lld: there are at most %d of each", t, rank, host, RANKS_MAX);
    if (length >= NODES_MAX) return REFUSE("thread %d has more than %d steps", t, NODES_MAX - 1);
    *self = (thread){.host = (uint8_t)host, .rank = (uint8_t)rank, .straight = length >= 0, .outside = known};
    *known = (outside_thread){.step = Py_NewRef(step), .next = Py_NewRef(next), .numbers = PyDict_New()};
    self->last = calloc((size_t)s->line_count + 1, sizeof *self->last);
    if (known->numbers == NULL || self->last == NULL) return PyErr_NoMemory() != NULL;
    if (s->w.hosts <= host) s->w.hosts = (uint8_t)(host + 1);
    if (s->w.ranks <= rank) s->w.ranks = (uint8_t)(rank + 1);
    s->w.host_of[rank] = (uint8_t)host;
    return node_number(s, t, first) != NO_NODE;
}

/* Read all nodes of a straight thread; of any other thread, the first one. Return false where there is an exception, or
 * s->trouble is set. */
static bool read_nodes(search *s, int t) {
    thread *self = &s->threads[t];
    for (uint16_t k = 0; self->straight; k++) {
        if (!fill(s, self, k)) return false;
        const node n = self->nodes[k]; /* a copy, as the next node may move the array */
        if (n.what == 0) return true;
        if (n.what == CRASH) s->straight = false;
        if (n.what != FENCE && n.what < RECORD) self->last[n.line] = (uint16_t)(k + 1);
        if (!find_next(s, self, k, 0)) return false;
        if ((n.what == LOAD ? self->nodes[k].seen_next[0] : self->nodes[k].next) != k + 1)
            return REFUSE("thread %d is not straight at node %d", t, k);
    }
    s->straight = false;
    return fill(s, self, 0);
}

/* Return whether every register is used by one thread only: moves of threads that share one do not commute. */
static bool registers_are_private(const search *s) {
    int owner[REGISTERS_MAX];
    memset(owner, -1, sizeof owner);
    for (int t = 0; t < s->thread_count; t++)
        for (uint32_t k = 0; k < s->threads[t].node_count; k++) {
            const node *n = &s->threads[t].nodes[k];
            int used = n->what == LOAD ? n->reg : n->source;
            if (n->what == 0 || used < 0) continue;
            if (owner[used] >= 0 && owner[used] != t) return false;
            owner[used] = t;
        }
    return true;
}

static bool begin_rows(search *s, const outside *o) {
    s->at_lines = s->thread_count;
    s->at_registers = s->at_lines + s->line_count;
    s->at_events = s->at_registers + o->register_count;
    uint32_t width = (uint32_t)(s->at_events + (o->event_count + 15) / 16 + 1);
    int16_t zero;
    if (!number_of(s, 0, &zero)) return false;
    if (!rows_begin(&s->states, width) || !rows_begin(&s->outcomes, width)) return PyErr_NoMemory() != NULL;
    s->current = calloc(s->states.width, sizeof *s->current);
    s->next = calloc(s->states.width, sizeof *s->next);
    s->first = calloc(s->states.width, sizeof *s->first);
    s->trail.to = calloc(s->states.width, sizeof *s->trail.to);
    if (s->current == NULL || s->next == NULL || s->first == NULL || s->trail.to == NULL)
        return PyErr_NoMemory() != NULL;
    for (int k = 0; k < o->register_count; k++) s->current[s->at_registers + k] = (uint16_t)zero;
    return true;
}

/* -- findings */

static PyObject *schedule_to(search *s, uint32_t state) {
    if (s->current == NULL) return PyList_New(0); /* the search was in trouble before it had a state */
    if (!search_retrace(s, state)) return PyErr_NoMemory();
    const trail *t = &s->trail;
    PyObject *moves = PyList_New(t->count);
    for (uint32_t k = 0; moves != NULL && k < t->count; k++) {
        const move *m = &t->moves[k];
        PyObject *item = Py_BuildValue("iiiii", m->what, m->who, m->line, m->age, m->made);
        if (item == NULL) Py_CLEAR(moves);
        else PyList_SET_ITEM(moves, k, item);
    }
    return moves;
}

static PyObject *outcome_at(search *s, uint32_t number) {
    const outside *o = s->outside;
    uint16_t *row = s->current;
    rows_get(&s->outcomes, number, row);
    PyObject *registers = PyTuple_New(o->register_count), *memory = PyTuple_New(o->word_count);
    PyObject *ends = PyTuple_New(s->thread_count);
    for (int k = 0; registers != NULL && k < o->register_count; k++)
        PyTuple_SET_ITEM(registers, k, PyLong_FromLongLong(s->values[row[s->at_registers + k]]));
    for (int k = 0; memory != NULL && k < o->word_count; k++) {
        const line_table *table = &s->lines[o->word_line[k]];
        uint8_t value = table->pools[row[s->at_lines + o->word_line[k]]][o->word_slot[k]];
        PyTuple_SET_ITEM(memory, k, PyLong_FromLongLong(s->values[value]));
    }
    for (int t = 0; ends != NULL && t < s->thread_count; t++) {
        long long name = row[t] == CRASHED ? -1 : s->threads[t].nodes[row[t] >> 1].name;
        PyTuple_SET_ITEM(ends, t, PyLong_FromLongLong(name));
    }
    return Py_BuildValue("NNNN", registers, memory, ends, schedule_to(s, s->outcome_states[number]));
}

static PyObject *found(search *s, enum stopped stopped) {
    PyObject *outcomes = PyList_New(0);
    for (uint32_t k = 0; outcomes != NULL && k < s->outcomes.count; k++) {
        PyObject *outcome = outcome_at(s, k);
        if (outcome == NULL || PyList_Append(outcomes, outcome) < 0) Py_CLEAR(outcomes);
        Py_XDECREF(outcome);
    }
    PyObject *finding = Py_NewRef(Py_None), *schedule = schedule_to(s, s->finding_state);
    if (s->finding != NO_FINDING) { /* with the load that may see a wrong value, if it is UNEXPECTED */
        Py_DECREF(finding);
        int what = s->finding == UNEXPECTED ? STORE : 0;
        finding = Py_BuildValue("iiiii", what, s->finding_thread, s->finding_line, s->finding_age, 0);
    }
    return Py_BuildValue("iiIKKiINNN", stopped, s->trouble, s->states.count, (unsigned long long)s->transitions,
                         (unsigned long long)s->bytes_most, s->reduction != NULL, s->settling.rounds, finding, schedule,
                         outcomes);
}

/* -- the function */

static void search_end(search *s, outside *o) {
    for (int t = 0; t < s->thread_count; t++) {
        thread *self = &s->threads[t];
        for (uint32_t k = 0; k < self->node_count; k++) free(self->nodes[k].seen_next);
        free(self->nodes);
        free(self->last);
        Py_XDECREF(o->threads[t].step);
        Py_XDECREF(o->threads[t].next);
        Py_XDECREF(o->threads[t].numbers);
    }
    for (int line = 0; s->lines != NULL && line < s->line_count; line++) table_end(&s->lines[line]);
    free(s->lines);
    free(s->initial);
    rows_end(&s->states);
    rows_end(&s->outcomes);
    free(s->parents);
    free(s->trail.moves);
    free(s->first);
    free(s->outcome_states);
    free(s->edges);
    free(s->first_edges);
    free(s->trail.to);
    free(s->ends);
    free(s->current);
    free(s->next);
    reduction_end(s->reduction);
    settle_end(s);
    free(o->word_line);
    free(o->word_slot);
}

static bool prepare(search *s, outside *o, PyObject *threads, PyObject *words) {
    uint8_t filled[LINES_MAX] = {0};
    s->lines = calloc((size_t)s->line_count + 1, sizeof *s->lines);
    s->initial = calloc((size_t)s->line_count + 1, sizeof *s->initial);
    if (s->lines == NULL || s->initial == NULL) return PyErr_NoMemory() != NULL;
    if (!read_words(s, o, words, filled)) return false;
    int count = (int)PyTuple_GET_SIZE(threads);
    for (int t = 0; t < count; t++) {
        s->thread_count++; /* counted first, as a thread that is read in part has to be freed as well */
        if (!read_thread(s, o, t, PyTuple_GET_ITEM(threads, t))) return false;
    }
    if (!begin_lines(s, filled)) return false;
    for (int t = 0; t < count; t++)
        if (!read_nodes(s, t)) return false;
    s->watch_ends = !s->straight;
    return begin_rows(s, o);
}

static PyObject *py_explore(PyObject *self, PyObject *args) {
    (void)self;
    PyObject *threads, *words, *result = NULL;
    int lines, registers, events, lazy, checked_reads, ample, past_hangs;
    unsigned long long states_max, bytes_max;
    double seconds_max;
    if (!PyArg_ParseTuple(args, "O!O!iiippppKKd", &PyTuple_Type, &threads, &PyTuple_Type, &words, &lines, &registers,
                          &events, &lazy, &checked_reads, &ample, &past_hangs, &states_max, &bytes_max, &seconds_max))
        return NULL;
    if (PyTuple_GET_SIZE(threads) > THREADS_MAX || PyTuple_GET_SIZE(words) > LINES_MAX * WORDS_MAX || lines < 0 ||
        lines > LINES_MAX || registers < 0 || registers > REGISTERS_MAX || events < 0 || events > EVENTS_MAX)
        return PyErr_Format(PyExc_ValueError, "a program has at most %d threads, %d lines, %d registers and %d events",
                            THREADS_MAX, LINES_MAX, REGISTERS_MAX, EVENTS_MAX);
    search *s = calloc(1, sizeof *s);
    outside *o = calloc(1, sizeof *o);
    if (s == NULL || o == NULL) {
        free(s);
        free(o);
        return PyErr_NoMemory();
    }
    *s = (search){.line_count = lines, .straight = true, .checked_reads = checked_reads, .past_hangs = past_hangs};
    s->w = (world){.lazy = lazy, .values = s->values};
    s->outside = o;
    s->expand = expand;
    s->follow = follow;
    s->pause = pause_for_signals;
    o->register_count = registers;
    o->event_count = events;
    enum stopped stopped = IN_TROUBLE;
    bool ready = prepare(s, o, threads, words);
    if (ready && ample && s->straight && registers_are_private(s)) {
        s->reduction = reduction_begin(s);
        ready = s->reduction != NULL || PyErr_NoMemory() != NULL;
    }
    if (ready && ample && lazy && !s->straight) ready = settle_begin(s) || PyErr_NoMemory() != NULL;
    if (ready) {
        o->released = PyEval_SaveThread();
        stopped = search_run(s, (budget){.states_max = states_max, .bytes_max = bytes_max, .seconds_max = seconds_max});
        PyEval_RestoreThread(o->released);
    }
    if (!PyErr_Occurred()) result = found(s, stopped);
    search_end(s, o);
    free(s);
    free(o);
    return result;
}

static PyMethodDef METHODS[] = {
    {"explore", py_explore, METH_VARARGS,
     "explore(threads, words, lines, registers, events, lazy, checked_reads, ample, past_hangs, states_max, "
     "bytes_max,\n"
     "        seconds_max)\n"
     "Every state of a program: see core.py."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef MODULE = {PyModuleDef_HEAD_INIT, .m_name = "faults.explore._search", .m_size = -1,
                                    .m_methods = METHODS};

PyMODINIT_FUNC PyInit__search(void) { return make_module(&MODULE); }
