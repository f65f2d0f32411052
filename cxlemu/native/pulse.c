/* Python's type Pulse: a thread that counts in a line of the pool as long as its process lives, without the GIL, so
 * that other ranks see that a rank is alive while it computes for long. */
#define _GNU_SOURCE
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "lines.h"
#include "modules.h"
#include "shadow.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <time.h>
#include <unistd.h>

typedef struct {
    PyObject_HEAD Py_buffer card; /* the card with the line, held as long as the thread runs */
    PyObject *memory; /* a Shadow of its own, or NULL */
    shadow *through;
    place line;
    int push; /* flush the line, and fence */
    int64_t interval_ns;
    uint64_t count;
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t stops;
    bool running, stopped;
    pid_t process; /* a forked child has no such thread */
} Pulse;

static void beat(Pulse *self) {
    self->count++;
    if (self->through) {
        /* Broken hardware loses this beat, as it loses any other store. */
        (void)shadow_signal(self->through, self->line, self->count, NULL, 0);
        (void)shadow_fence(self->through);
        return;
    }
    uint8_t *at = (uint8_t *)self->card.buf + self->line.offset;
    atomic_store_explicit((_Atomic uint64_t *)at, self->count, memory_order_release);
    if (self->push) lines_flush(at, LINE_BYTES, 0), lines_fence();
}

static void *count(void *argument) {
    Pulse *self = argument;
    struct timespec next;
    clock_gettime(CLOCK_MONOTONIC, &next);
    pthread_mutex_lock(&self->mutex);
    while (!self->stopped) {
        pthread_mutex_unlock(&self->mutex);
        beat(self);
        pthread_mutex_lock(&self->mutex);
        const int64_t ns = next.tv_nsec + self->interval_ns;
        next.tv_sec += ns / 1000000000, next.tv_nsec = ns % 1000000000;
        struct timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        if (now.tv_sec > next.tv_sec) next = now; /* the process was stopped: skip the beats that it missed */
        while (!self->stopped && !pthread_cond_timedwait(&self->stops, &self->mutex, &next)) continue;
    }
    pthread_mutex_unlock(&self->mutex);
    return NULL;
}

static void stop(Pulse *self) {
    if (!self->running || self->process != getpid()) return;
    self->running = false; /* another thread may come while this one waits without the GIL */
    pthread_mutex_lock(&self->mutex);
    self->stopped = true;
    pthread_cond_signal(&self->stops);
    pthread_mutex_unlock(&self->mutex);
    Py_BEGIN_ALLOW_THREADS
    pthread_join(self->thread, NULL);
    Py_END_ALLOW_THREADS
    pthread_cond_destroy(&self->stops);
    pthread_mutex_destroy(&self->mutex);
}

static bool start(Pulse *self) {
    pthread_condattr_t monotonic;
    if (pthread_condattr_init(&monotonic)) return false;
    const bool ready = !pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC) &&
                       !pthread_cond_init(&self->stops, &monotonic) && !pthread_mutex_init(&self->mutex, NULL);
    pthread_condattr_destroy(&monotonic);
    /* Block all signals in the new thread: they are for the program's threads. */
    sigset_t all, before;
    sigfillset(&all);
    self->process = getpid();
    if (ready) { /* a rank that is lost before its thread runs had a pulse, too */
        Py_BEGIN_ALLOW_THREADS /* a thread that holds the host's lock may be waiting for the GIL */
        beat(self);
        Py_END_ALLOW_THREADS
    }
    if (ready && !pthread_sigmask(SIG_SETMASK, &all, &before)) {
        self->running = !pthread_create(&self->thread, NULL, count, self);
        pthread_sigmask(SIG_SETMASK, &before, NULL);
    }
    return self->running;
}

static int Pulse_init(Pulse *self, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"card", "offset", "push", "memory", "interval_ns", NULL};
    PyObject *card, *memory;
    long long offset, interval_ns;
    if (self->card.obj) return RAISED(PyExc_RuntimeError, "a Pulse is made once");
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OLpOL", names, &card, &offset, &self->push, &memory, &interval_ns))
        return -1;
    if (PyObject_GetBuffer(card, &self->card, PyBUF_WRITABLE) < 0) return -1;
    if (offset < 0 || offset % LINE_BYTES || offset > self->card.len - LINE_BYTES || interval_ns < 1)
        return RAISED(PyExc_ValueError, "a pulse beats in a whole line of the card, now and then");
    self->line = (place){0, offset}, self->interval_ns = interval_ns;
    if (memory != Py_None) {
        if (!(self->through = shadow_of(memory))) return -1;
        self->memory = Py_NewRef(memory);
    }
    if (!start(self)) return RAISED(PyExc_OSError, "this process can start no more threads");
    return 0;
}

static void Pulse_dealloc(Pulse *self) {
    stop(self);
    if (self->card.obj) PyBuffer_Release(&self->card);
    Py_XDECREF(self->memory);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyObject *Pulse_stop(Pulse *self, PyObject *none) {
    (void)none;
    stop(self);
    Py_RETURN_NONE;
}

static PyMethodDef pulse_methods[] = {
    {"stop", (PyCFunction)Pulse_stop, METH_NOARGS, "stop(): no beat comes after this; twice is fine."},
    {NULL, NULL, 0, NULL},
};

static PyTypeObject PulseType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "cxlemu._native.Pulse",
    .tp_doc = "Counts in a line of a card as long as the process lives, in a thread that needs no GIL.",
    .tp_basicsize = sizeof(Pulse),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = PyType_GenericNew,
    .tp_init = (initproc)Pulse_init,
    .tp_dealloc = (destructor)Pulse_dealloc,
    .tp_methods = pulse_methods,
};

int pulse_add_to(PyObject *module) { return PyModule_AddType(module, &PulseType); }
