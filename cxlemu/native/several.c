/* Several programs of one rank that progress side by side, such as messages to and from many peers: none of them waits
 * for another to end. */
#include "modules.h"
#include "python.h"

#include "idle.h"

enum { PROGRAMS_MAX = 1 << 16, LOOKS_IN_STEP = 100 };

typedef struct {
    Program **its;
    Py_ssize_t count;
    const volatile char *wake; /* other than 0: return, as the caller has something else to do */
    Py_ssize_t which; /* the one that ended the run, or -1 */
    obstacle found[MAX_STREAMS];
    int waiting;
    enum status status;
} crowd;

static int64_t steps(const program *p) {
    int64_t sum = 0;
    for (int32_t s = 0; s < p->stream_count; s++) sum += p->position[s];
    return sum;
}

/* Run every program as far as it goes, until program_run returns other than IDLE for one, which c->which names. Return
 * whether any made a step. */
static bool turn(crowd *c) {
    bool stepped = false;
    for (c->which = 0; c->which < c->count; c->which++) {
        program *p = &c->its[c->which]->p;
        const int64_t before = steps(p);
        c->status = program_run(p, 0, 0, c->found, &c->waiting);
        stepped = stepped || steps(p) != before;
        if (c->status != IDLE) return true;
    }
    c->which = -1;
    return stepped;
}

static void run(crowd *c, int64_t idle_ns, int64_t spins) {
    idling since = {0};
    for (;;) {
        const bool stepped = turn(c);
        if (c->which >= 0 || *c->wake) return;
        if (stepped) since = (idling){0};
        else if (!idle(&since, idle_ns, spins, INT64_MAX, false)) return;
    }
}

/* Return whether all programs are small, direct and unpaced: they end sooner than another thread could take the GIL. */
static bool all_small(const crowd *c) {
    for (Py_ssize_t k = 0; k < c->count; k++) {
        const program *p = &c->its[k]->p;
        if (p->work_bytes > SMALL_WORK_BYTES || p->through || p->pacing) return false;
    }
    return true;
}

/* Whether a program was started, or has ended and Python may not know: a signal's handler raised before it did. */
static bool is_under_way(const Program *its) {
    const program *p = &its->p;
    for (int32_t s = 0; its->state == READY && s < p->stream_count; s++)
        if (p->position[s] != p->lengths[s]) return false;
    return its->state == STARTED || its->state == READY;
}

static int take(crowd *c, PyObject *programs) {
    for (Py_ssize_t k = 0; k < c->count; k++) {
        PyObject *one = PyList_GET_ITEM(programs, k);
        if (!PyObject_TypeCheck(one, &program_type) || !is_under_way((Program *)one)) {
            PyErr_SetString(PyExc_RuntimeError, "advance_any takes programs that were started, each once");
            while (k-- > 0) {
                c->its[k]->state = STARTED;
                Py_DECREF(c->its[k]);
            }
            return -1;
        }
        c->its[k] = (Program *)Py_NewRef(one);
        c->its[k]->state = BUSY;
    }
    return 0;
}

/* advance_any(programs, idle_ns, spins, wake) -> (which, status, obstacles): run them until one ends or stops, or until
 * none has progressed for idle_ns or wake is set, when `which` is -1. */
static PyObject *advance_any(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    (void)module;
    if (count != 4 || !PyList_Check(args[0]) || PyList_GET_SIZE(args[0]) > PROGRAMS_MAX)
        return PyErr_Format(PyExc_TypeError, "advance_any takes a list of programs, idle_ns, spins and a byte");
    const long long idle_ns = PyLong_AsLongLong(args[1]), spins = PyLong_AsLongLong(args[2]);
    if (PyErr_Occurred()) return NULL;
    Py_buffer wake;
    if (PyObject_GetBuffer(args[3], &wake, PyBUF_SIMPLE) < 0) return NULL;
    Program *few[8];
    crowd c = {.count = PyList_GET_SIZE(args[0]), .wake = wake.buf, .which = -1, .status = IDLE, .its = few};
    if (c.count > (Py_ssize_t)(sizeof few / sizeof *few)) c.its = PyMem_Malloc((size_t)c.count * sizeof *c.its);
    if (!c.its) PyErr_NoMemory();
    else if (wake.len < 1) PyErr_SetString(PyExc_ValueError, "wake is a byte");
    PyObject *list = NULL;
    if (!PyErr_Occurred() && take(&c, args[0]) == 0) {
        const bool small = all_small(&c);
        if (small) run(&c, 0, spins ? least(spins, LOOKS_IN_STEP) : 0);
        if (c.which < 0 && (idle_ns > 0 || !small)) {
            Py_BEGIN_ALLOW_THREADS
            run(&c, idle_ns, spins);
            Py_END_ALLOW_THREADS
        }
        for (Py_ssize_t k = 0; k < c.count; k++) {
            const bool done = k == c.which && c.status == DONE;
            c.its[k]->state = done ? READY : STARTED;
            if (done) program_release_call(c.its[k]);
            Py_DECREF(c.its[k]);
        }
        list = program_obstacle_list(c.found, c.which < 0 ? 0 : c.waiting);
    }
    PyBuffer_Release(&wake);
    if (c.its != few) PyMem_Free(c.its);
    return list ? Py_BuildValue("(niN)", c.which, c.which < 0 ? (int)IDLE : (int)c.status, list) : NULL;
}

/* Take the exception that is set, or NULL. */
static PyObject *raised(void) {
#if PY_VERSION_HEX >= 0x030C0000
    return PyErr_GetRaisedException();
#else
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    if (type) PyErr_NormalizeException(&type, &value, &trace);
    if (trace) PyException_SetTraceback(value, trace);
    Py_XDECREF(type);
    Py_XDECREF(trace);
    return value;
#endif
}

/* unlocked(lock, function, ...) -> what the function returns, called without the lock, which is held again afterwards. In
 * Python the handler of a signal may raise after every call: with a lock that it had just taken or given back. */
static PyObject *unlocked(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    (void)module;
    if (count < 2) return PyErr_Format(PyExc_TypeError, "unlocked takes a lock and a function");
    PyObject *done = PyObject_CallMethod(args[0], "release", NULL);
    if (!done) return NULL;
    Py_DECREF(done);
    PyObject *const result = PyObject_Vectorcall(args[1], args + 2, (size_t)count - 2, NULL);
    PyObject *error = raised();
    while (!(done = PyObject_CallMethod(args[0], "acquire", NULL))) Py_XSETREF(error, raised()); /* a handler's */
    Py_DECREF(done);
    if (!error) return result;
    Py_XDECREF(result);
    PyErr_SetObject((PyObject *)Py_TYPE(error), error);
    Py_DECREF(error);
    return NULL;
}

static PyMethodDef several_methods[] = {
    {"unlocked", FAST(unlocked), NULL},
    {"advance_any", FAST(advance_any), NULL},
    {NULL, NULL, 0, NULL},
};

int several_add_to(PyObject *module) { return PyModule_AddFunctions(module, several_methods); }
