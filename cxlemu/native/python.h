/* The types and functions that the files of the binding share. */
#ifndef CXLEMU_PYTHON_H
#define CXLEMU_PYTHON_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "core.h"
#include "interpreter.h"

enum state { UNBOUND, READY, STARTED, BUSY };

/* A rank's part of a plan, bound to the cards of a pool. */
typedef struct {
    PyObject_HEAD program p;
    enum state state;
    uint8_t *card_pointers[MAX_CARDS];
    Py_buffer card_views[MAX_CARDS]; /* held for as long as the program lives */
    int card_view_count;
    PyObject *pacer; /* sets the program's pace; NULL: it has none */
    PyObject *memory; /* the emulated memory that the program goes through; NULL: it goes to the cards directly */
    Py_buffer call_views[MAX_BUFFERS]; /* the user's arrays, held while a call that `start` began runs */
    int call_view_count;
} Program;

extern PyTypeObject program_type, sequencer_type, operation_type, dispatch_cache_type, verb_type;

enum { INPUT, OUTPUT, SCRATCH, CALL_BUFFERS };

/* The methods of a Sequencer's hooks, which C calls: their contracts are those of CallHooks in engines/call_hooks.py. */
enum hook { SLOW_PATH, RESUME, RUN_IN_TURN, HOOKS };

/* Numbers a communicator's calls, and knows what Python does for them: see sequencer.c. */
typedef struct {
    PyObject_HEAD long long epoch, calls; /* epoch: of the next round; calls: how many have begun */
    unsigned int tag; /* of all calls so far */
    int revoked;
    bool busy; /* whether a call runs, in this thread or another */
    long long idle_ns, spins;
    int64_t *done_seen; /* by rank: what its done doorbell showed last */
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
    PyObject *cookie; /* what resume is given, to know the call by */
    PyObject *result; /* what a call returns */
    Py_buffer views[CALL_BUFFERS]; /* held for as long as the operation lives */
    int view_count;
} Operation;

/* Whether a call has to ask Python first: the communicator is revoked or has used up its epochs, or an asynchronous call may
 * be ahead. */
static inline bool sequencer_is_closed(const Sequencer *self) {
    return self->revoked || self->epoch >= EPOCHS_END || *(const volatile char *)self->pending.buf;
}

/* Begin a call: find its first epoch, and a tag that depends on this call and all before it. */
void sequencer_begin(Sequencer *self, int64_t rounds, uint16_t digest, int64_t *epoch, uint16_t *tag);

/* Run an operation on arrays that are known to be as long as the plan says. Returns a new reference to result. */
PyObject *operation_run(Operation *self, uint8_t *input, uint8_t *output, PyObject *result);

/* Make an operation like one that calls bring arrays to, on the arrays x and out, which start at input and output. */
PyObject *operation_on(const Operation *like, PyObject *x, PyObject *out, uint8_t *input, uint8_t *output);

/* The arguments of a collective call, in their order. */
enum argument { COLLECTIVE, X, OUT, REDOP, ROOT, VARIANT, ASYNC, ARGUMENTS };

/* Run a call if one like it was remembered, and return whether it ran. Then *result is what it returned, or NULL with an
 * exception. */
bool dispatch_find(PyObject *calls, PyObject *const *call, PyObject **result);
PyObject *dispatch_slow_path(PyObject *calls, PyObject *const *call);

/* Let the user's arrays go, as their call is over. */
void program_release_call(Program *self);

/* Return a new list of (stream, at, doorbell, wanted, shows). */
PyObject *program_obstacle_list(const obstacle *found, int count);

/* Import NumPy's C interface, before any array is looked at. Returns -1 with an exception on failure. */
int dispatch_import_numpy(void);

#endif
