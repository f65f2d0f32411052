/* What the files of the binding share. */
#ifndef CXLEMU_PYTHON_H
#define CXLEMU_PYTHON_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "core.h"

enum state { UNBOUND, READY, STARTED, BUSY };

/* A rank's part of a plan, bound to the cards of a pool. */
typedef struct {
    PyObject_HEAD
    program p;
    enum state state;
    uint8_t *card_pointers[MAX_CARDS];
    Py_buffer card_views[MAX_CARDS]; /* held as long as the program lives */
    int card_view_count;
    PyObject *memory; /* that the program goes through, if not directly to the cards */
    Py_buffer call_views[MAX_BUFFERS]; /* the user's arrays, held while a call runs that start began */
    int call_view_count;
} Program;

extern PyTypeObject ProgramType, RingType, OperationType, CallsType, VerbType;

/* Of a collective call, in this order. */
enum argument { COLLECTIVE, X, OUT, REDOP, ROOT, VARIANT, ASYNC, ARGUMENTS };

/* Run a call if one like it was remembered. True: it ran, and *result is what it returned, NULL with an exception. */
bool calls_find(PyObject *calls, PyObject *const *call, PyObject **result);

/* A new list of (stream, at, doorbell, wanted, shows). */
PyObject *obstacle_list(const obstacle *found, int count);

/* Before anything looks at an array; -1 with an exception on failure. */
int import_numpy(void);

#endif
