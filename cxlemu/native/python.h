/* What the files of the binding share. */
#ifndef CXLEMU_PYTHON_H
#define CXLEMU_PYTHON_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "core.h"

enum state { UNBOUND, READY, STARTED, BUSY };

/* A rank's part of a plan, bound to the cards of a pool. */
typedef struct {
    PyObject_HEAD program p;
    enum state state;
    uint8_t *card_pointers[MAX_CARDS];
    Py_buffer card_views[MAX_CARDS]; /* held as long as the program lives */
    int card_view_count;
    PyObject *pacer; /* whose pace it goes at, if any */
    PyObject *memory; /* that the program goes through, if not directly to the cards */
    Py_buffer call_views[MAX_BUFFERS]; /* the user's arrays, held while a call runs that start began */
    int call_view_count;
} Program;

extern PyTypeObject program_type, sequencer_type, operation_type, dispatch_cache_type, verb_type;

enum { INPUT, OUTPUT, SCRATCH, CALL_BUFFERS };

/* The methods of a Sequencer's hooks, which C calls: their contracts are those of CallHooks in engines/call_hooks.py. */
enum hook { SLOW_PATH, RESUME, RUN_IN_TURN, HOOKS };

/* The order of a communicator's calls, and what Python does of them: see sequencer.c. */
typedef struct {
    PyObject_HEAD long long epoch, calls; /* epoch: of the next round; calls: begun so far */
    unsigned int tag; /* of all calls so far */
    int revoked;
    bool busy; /* a call runs, in this thread or another */
    long long idle_ns, spins;
    int64_t *done_seen; /* [rank]: what its done doorbell showed last */
    int ranks;
    Py_buffer pending; /* a byte: not 0 while an asynchronous call may be ahead */
    PyObject *hooks[HOOKS]; /* bound methods */
} Sequencer;

/* A call that is ready to run again and again, on the arrays it was made with. */
typedef struct {
    PyObject_HEAD vectorcallfunc call;
    Sequencer *sequencer;
    Program *program;
    long long rounds;
    unsigned short digest;
    PyObject *cookie; /* given to resume: whose call this is */
    PyObject *result; /* what a call returns */
    Py_buffer views[CALL_BUFFERS]; /* held as long as the operation lives */
    int view_count;
} Operation;

/* Whether a call has to ask Python first: the communicator is revoked or has used up its epochs, or an asynchronous call may
 * be ahead. */
static inline bool sequencer_is_closed(const Sequencer *self) {
    return self->revoked || self->epoch >= EPOCHS_END || *(const volatile char *)self->pending.buf;
}

/* A call begins: its first epoch, and a tag of it and all calls before it. */
void sequencer_begin(Sequencer *self, int64_t rounds, uint16_t digest, int64_t *epoch, uint16_t *tag);

/* Run on arrays that are known to be as long as the plan says. Returns a new reference to result. */
PyObject *operation_run(Operation *self, uint8_t *input, uint8_t *output, PyObject *result);

/* Of a collective call, in this order. */
enum argument { COLLECTIVE, X, OUT, REDOP, ROOT, VARIANT, ASYNC, ARGUMENTS };

/* Run a call if one like it was remembered. True: it ran, and *result is what it returned, NULL with an exception. */
bool dispatch_find(PyObject *calls, PyObject *const *call, PyObject **result);
PyObject *dispatch_slow_path(PyObject *calls, PyObject *const *call);

/* A call is over: let the user's arrays go. */
void program_release_call(Program *self);

/* A new list of (stream, at, doorbell, wanted, shows). */
PyObject *program_obstacle_list(const obstacle *found, int count);

/* Before anything looks at an array; -1 with an exception on failure. */
int dispatch_import_numpy(void);

#endif
