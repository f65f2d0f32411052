/* This machine's best: copies and sums of float32 in local memory, dependent loads, and a cache line that two ranks
 * exchange. The native engine is measured against these bounds, so they share no code with it. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

#include "../interpreter.h"

#if __has_include(<valgrind/callgrind.h>)
#include <valgrind/callgrind.h>
#define HAS_CALLGRIND 1
#else
#define HAS_CALLGRIND 0
#define CALLGRIND_TOGGLE_COLLECT
#define CALLGRIND_DUMP_STATS_AT(name) (void)(name)
#endif

#if defined(__x86_64__) && defined(__GLIBC__) && !defined(__SANITIZE_ADDRESS__) && !defined(CXLEMU_PLAIN)
#define WIDEST __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define WIDEST
#endif

enum { MOVES_MAX = 4096, SOURCES_MAX = 64, BLOCK = 4096, LINE_BYTES = 64 };

struct move {
    float *out;
    const float *in[SOURCES_MAX];
    size_t sources, bytes;
};

WIDEST static void add(float *restrict out, const float *a, const float *b, size_t n) {
    for (size_t i = 0; i < n; i++) out[i] = a[i] + b[i];
}

WIDEST static void add_to(float *restrict out, const float *b, size_t n) {
    for (size_t i = 0; i < n; i++) out[i] += b[i];
}

WIDEST static void fill(float *out, float value, size_t n) {
    for (size_t i = 0; i < n; i++) out[i] = value;
}

/* Copy, or add up, a move's sources: block by block, so that a partial sum stays in the nearest cache. */
static void execute(const struct move *m) {
    if (m->sources == 1) {
        memcpy(m->out, m->in[0], m->bytes);
        return;
    }
    size_t elements = m->bytes / sizeof(float);
    for (size_t at = 0; at < elements; at += BLOCK) {
        size_t n = elements - at < BLOCK ? elements - at : BLOCK;
        add(m->out + at, m->in[0] + at, m->in[1] + at, n);
        for (size_t source = 2; source < m->sources; source++) add_to(m->out + at, m->in[source] + at, n);
    }
}

/* Take a move's buffers: the first of them is written, the others are read. Return 0, or -1 with an exception; the
 * caller releases the *taken buffers in `views` in either case. */
static int parse_move(PyObject *item, struct move *m, Py_buffer *views, size_t *taken) {
    PyObject *out, *sources;
    if (!PyArg_ParseTuple(item, "OO!", &out, &PyTuple_Type, &sources)) return -1;
    size_t n = (size_t)PyTuple_GET_SIZE(sources);
    if (n < 1 || n > SOURCES_MAX)
        return RAISED(PyExc_ValueError, "a move has 1 to %d sources, not %zu", SOURCES_MAX, n);
    if (PyObject_GetBuffer(out, &views[*taken], PyBUF_WRITABLE) < 0) return -1;
    Py_buffer *target = &views[(*taken)++];
    *m = (struct move){.out = target->buf, .sources = n, .bytes = (size_t)target->len};
    for (size_t s = 0; s < n; s++) {
        if (PyObject_GetBuffer(PyTuple_GET_ITEM(sources, (Py_ssize_t)s), &views[*taken], PyBUF_SIMPLE) < 0) return -1;
        Py_buffer *source = &views[(*taken)++];
        if (source->len != target->len || target->len % (Py_ssize_t)sizeof(float))
            return RAISED(PyExc_ValueError, "a move's buffers have the same size, a whole number of float32");
        m->in[s] = source->buf;
    }
    return 0;
}

static void repeat(const struct move *moves, size_t n, Py_buffer *rewritten, unsigned long iterations) {
    for (unsigned long i = 0; i < iterations; i++) {
        if (rewritten->buf != NULL) fill(rewritten->buf, (float)(i % 2), (size_t)rewritten->len / sizeof(float));
        for (size_t k = 0; k < n; k++) execute(&moves[k]);
        atomic_signal_fence(memory_order_seq_cst); /* the compiler leaves no repetition out */
    }
}

static PyObject *py_move(PyObject *self, PyObject *args) {
    (void)self;
    PyObject *items, *rewritten;
    unsigned long iterations;
    if (!PyArg_ParseTuple(args, "O!Ok", &PyTuple_Type, &items, &rewritten, &iterations)) return NULL;
    size_t n = (size_t)PyTuple_GET_SIZE(items), taken = 0;
    if (n > MOVES_MAX) return PyErr_Format(PyExc_ValueError, "at most %d moves, not %zu", MOVES_MAX, n);
    Py_buffer source = {0};
    struct move *moves = PyMem_Calloc(n + 1, sizeof *moves);
    Py_buffer *views = PyMem_Calloc((n + 1) * (SOURCES_MAX + 1), sizeof *views);
    int ok = moves != NULL && views != NULL;
    if (!ok) PyErr_NoMemory();
    for (size_t i = 0; ok && i < n; i++)
        ok = parse_move(PyTuple_GET_ITEM(items, (Py_ssize_t)i), &moves[i], views, &taken) == 0;
    if (ok && rewritten != Py_None) ok = PyObject_GetBuffer(rewritten, &source, PyBUF_WRITABLE) == 0;
    if (ok) {
        Py_BEGIN_ALLOW_THREADS
        repeat(moves, n, &source, iterations);
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&source);
    while (taken > 0) PyBuffer_Release(&views[--taken]);
    PyMem_Free(views);
    PyMem_Free(moves);
    return ok ? Py_NewRef(Py_None) : NULL;
}

static double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* Wait until `line` shows at least `wanted`; yields: the other rank shares this core. Return 0, or -1 after the time
 * `ends`, which is compared with the clock only now and then. */
static int await(const _Atomic uint64_t *line, uint64_t wanted, int yields, double ends) {
    for (unsigned long looks = 1; atomic_load_explicit(line, memory_order_acquire) < wanted; looks++) {
        if (looks % 65536 == 0 && now_s() > ends) return -1;
        if (yields) sched_yield();
#if defined(__x86_64__)
        else __builtin_ia32_pause();
#endif
    }
    return 0;
}

/* Exchange rounds, numbered from `first`: rank 0 rings, rank 1 answers, each in a line of its own as with doorbells. */
static PyObject *py_ping_pong(PyObject *self, PyObject *args) {
    (void)self;
    Py_buffer lines;
    int rank, yields, lost = 0;
    unsigned long long first, rounds;
    double deadline_s;
    if (!PyArg_ParseTuple(args, "w*iKKpd", &lines, &rank, &first, &rounds, &yields, &deadline_s)) return NULL;
    if (lines.len < 4 * LINE_BYTES || rank < 0 || rank > 1) {
        PyBuffer_Release(&lines);
        PyErr_SetString(PyExc_ValueError, "ping-pong is between ranks 0 and 1, in four lines of memory");
        return NULL;
    }
    _Atomic uint64_t *mine = (_Atomic uint64_t *)((char *)lines.buf + 2 * LINE_BYTES * rank);
    _Atomic uint64_t *theirs = (_Atomic uint64_t *)((char *)lines.buf + 2 * LINE_BYTES * (1 - rank));
    Py_BEGIN_ALLOW_THREADS
    double ends = now_s() + deadline_s;
    for (uint64_t round = first; round < first + rounds && !lost; round++) {
        if (rank == 1) lost = await(theirs, round, yields, ends);
        atomic_store_explicit(mine, round, memory_order_release);
        if (rank == 0) lost = await(theirs, round, yields, ends);
    }
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&lines);
    if (lost)
        return PyErr_Format(PyExc_TimeoutError, "the other rank did not answer to a cache line before the deadline");
    Py_RETURN_NONE;
}

/* Make dependent loads: the first eight bytes of a line hold the number of the next one. */
static PyObject *py_chase(PyObject *self, PyObject *args) {
    (void)self;
    Py_buffer lines;
    unsigned long long start, loads;
    if (!PyArg_ParseTuple(args, "y*KK", &lines, &start, &loads)) return NULL;
    const uint64_t count = (uint64_t)lines.len / LINE_BYTES;
    uint64_t at = start;
    bool inside = start < count;
    double seconds = 0;
    Py_BEGIN_ALLOW_THREADS
    const char *bytes = lines.buf;
    const double begin = now_s();
    for (uint64_t k = 0; inside && k < loads; k++) {
        memcpy(&at, bytes + at * LINE_BYTES, sizeof at);
        inside = at < count;
    }
    seconds = now_s() - begin;
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&lines);
    if (!inside) return PyErr_Format(PyExc_ValueError, "a line names one that is not there");
    return Py_BuildValue("(dK)", seconds, (unsigned long long)at);
}

/* Under callgrind only: start or stop counting this thread's instructions. */
static PyObject *py_toggle_collect(PyObject *self, PyObject *none) {
    (void)self, (void)none;
    CALLGRIND_TOGGLE_COLLECT;
    Py_RETURN_NONE;
}

/* Under callgrind only: write the counts since the last dump, under a name. */
static PyObject *py_dump(PyObject *self, PyObject *name) {
    (void)self;
    const char *text = PyUnicode_AsUTF8(name);
    if (text == NULL) return NULL;
    CALLGRIND_DUMP_STATS_AT(text);
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"move", py_move, METH_VARARGS,
     "move(((out, (in, ...)), ...), rewritten, iterations): copies, or sums of float32; rewritten is filled before."},
    {"ping_pong", py_ping_pong, METH_VARARGS,
     "ping_pong(lines, rank, first, rounds, yields, deadline_s): round trips of a cache line."},
    {"chase", py_chase, METH_VARARGS,
     "chase(lines, start, loads) -> (seconds, line): each line's first 64 bits say which comes next."},
    {"toggle_collect", py_toggle_collect, METH_NOARGS, "Under callgrind: count this thread's instructions, or not."},
    {"dump", py_dump, METH_O, "dump(name): under callgrind, write what was counted since the last one."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, .m_name = "cxlemu._measure", .m_size = -1,
                                        .m_methods = methods};

PyMODINIT_FUNC PyInit__measure(void) {
    PyObject *module = make_module(&definition);
    if (module != NULL && PyModule_AddIntConstant(module, "HAS_CALLGRIND", HAS_CALLGRIND) < 0) Py_CLEAR(module);
    return module;
}
