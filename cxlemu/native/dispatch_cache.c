/* A DispatchCache finds the Operation for the arguments of an ordinary call. Any other call takes the sequencer's slow_path. */
#include "python.h"

#define NPY_NO_DEPRECATED_API NPY_2_0_API_VERSION
#include <numpy/arrayobject.h>
#include <structmember.h>

enum { ENTRIES = 256 };

/* What a call depends on of an array. nbytes is -1 where there is no array. */
typedef struct {
    npy_intp nbytes;
    PyArray_Descr *dtype;
} shape;

typedef struct {
    PyObject *collective, *redop, *root, *variant; /* compared by identity: an equal object takes the slow_path */
    shape x, out; /* dtypes are compared by identity as well */
    bool overlap;
    int64_t distance; /* from out to x, where they overlap */
    /* Of arrays in the heap: where they lie, and how often the heap had changed, as calls depend on that. */
    uint8_t *heap_input, *heap_output;
    int64_t changes;
    Operation *operation;
} entry;

typedef struct {
    PyObject_HEAD vectorcallfunc call;
    Sequencer *sequencer;
    Py_buffer heap;
    Py_buffer changes; /* an int64_t that is another one whenever an array of the heap was made or dropped */
    entry entries[ENTRIES];
} DispatchCache;

/* Look at an array. False where it cannot be compared here: Python takes the call, or says what is wrong with the array. */
static bool look_at(PyObject *object, bool written, shape *s, uint8_t **at) {
    s->nbytes = -1, s->dtype = NULL, *at = NULL;
    if (object == Py_None) return true;
    if (!PyArray_CheckExact(object)) return false;
    PyArrayObject *array = (PyArrayObject *)object;
    if (!PyArray_IS_C_CONTIGUOUS(array) || (written && !PyArray_ISWRITEABLE(array))) return false;
    s->nbytes = PyArray_NBYTES(array), s->dtype = PyArray_DESCR(array), *at = PyArray_DATA(array);
    return true;
}

static bool lies_in(const uint8_t *at, const Py_buffer *heap) {
    return (uintptr_t)at - (uintptr_t)heap->buf < (uintptr_t)heap->len;
}

static bool same(const shape *a, const shape *b) { return a->nbytes == b->nbytes && a->dtype == b->dtype; }

/* The arrays that a call brings. */
typedef struct {
    shape x, out;
    uint8_t *input, *output;
    bool overlap;
    int64_t distance;
    uint8_t *heap_input, *heap_output; /* the same, if they lie in the heap; else NULL */
    int64_t changes;
} arrays;

static bool look_at_arrays(const DispatchCache *self, PyObject *x, PyObject *out, arrays *a) {
    if (!look_at(out, true, &a->out, &a->output) || !look_at(x, false, &a->x, &a->input)) return false;
    a->heap_input = lies_in(a->input, &self->heap) ? a->input : NULL;
    a->heap_output = lies_in(a->output, &self->heap) ? a->output : NULL;
    a->changes = a->heap_input || a->heap_output ? *(const volatile int64_t *)self->changes.buf : 0;
    const int64_t distance = (int64_t)((uintptr_t)a->input - (uintptr_t)a->output);
    a->overlap = distance < a->out.nbytes && -distance < a->x.nbytes;
    a->distance = a->overlap ? distance : 0;
    return true;
}

static size_t entry_of(PyObject *collective, PyObject *redop, const arrays *a) {
    uint64_t key = (uint64_t)(uintptr_t)collective >> 4;
    key = key * 31 + ((uint64_t)(uintptr_t)redop >> 4);
    key = key * 31 + (uint64_t)a->x.nbytes;
    key = key * 31 + (uint64_t)a->out.nbytes;
    key = key * 31 + (uint64_t)(uintptr_t)a->heap_input;
    key = key * 31 + (uint64_t)(uintptr_t)a->heap_output;
    return (key * 0x9E3779B97F4A7C15u) >> 56;
}

/* The operation of calls like this one, or NULL where none is remembered. */
static Operation *remembered(DispatchCache *self, PyObject *const *call, arrays *a) {
    if (!look_at_arrays(self, call[X], call[OUT], a)) return NULL;
    const entry *e = &self->entries[entry_of(call[COLLECTIVE], call[REDOP], a)];
    if (!e->operation || e->collective != call[COLLECTIVE] || e->redop != call[REDOP] || e->root != call[ROOT] ||
        e->variant != call[VARIANT] || !same(&e->x, &a->x) || !same(&e->out, &a->out) || e->overlap != a->overlap ||
        e->distance != a->distance || e->heap_input != a->heap_input || e->heap_output != a->heap_output ||
        e->changes != a->changes)
        return NULL;
    return e->operation;
}

bool dispatch_find(PyObject *calls, PyObject *const *call, PyObject **result) {
    DispatchCache *self = (DispatchCache *)calls;
    arrays a;
    if (call[ASYNC] != Py_False || sequencer_is_closed(self->sequencer)) return false;
    Operation *operation = remembered(self, call, &a);
    if (!operation) return false;
    Py_INCREF(operation); /* should its entry go while it runs */
    *result = operation_run(operation, a.input, a.output, call[OUT]);
    Py_DECREF(operation);
    return true;
}

PyObject *dispatch_slow_path(PyObject *calls, PyObject *const *call) {
    return PyObject_Vectorcall(((DispatchCache *)calls)->sequencer->hooks[SLOW_PATH], call, ARGUMENTS, NULL);
}

static PyObject *DispatchCache_call(PyObject *callable, PyObject *const *args, size_t nargsf, PyObject *names) {
    PyObject *result;
    if (PyVectorcall_NARGS(nargsf) != ARGUMENTS || names)
        return PyErr_Format(PyExc_TypeError, "a call has %d arguments, by position", ARGUMENTS);
    if (dispatch_find(callable, args, &result)) return result;
    return dispatch_slow_path(callable, args);
}

static void forget(entry *e) {
    Py_CLEAR(e->collective);
    Py_CLEAR(e->redop);
    Py_CLEAR(e->root);
    Py_CLEAR(e->variant);
    Py_CLEAR(e->operation);
    Py_CLEAR(e->x.dtype);
    Py_CLEAR(e->out.dtype);
}

/* remember(operation, collective, x, out, op, root, variant): calls with such arguments run the operation's program, on
 * the arrays they bring. An operation holds its own arrays for as long as it is remembered: give one without any. */
static PyObject *DispatchCache_remember(DispatchCache *self, PyObject *const *args, Py_ssize_t count) {
    arrays a;
    if (count != ARGUMENTS || !PyObject_TypeCheck(args[0], &operation_type))
        return PyErr_Format(PyExc_TypeError, "remember takes an operation and six arguments of its call");
    Operation *operation = (Operation *)args[0];
    PyObject *const *call = args + 1;
    if (operation->sequencer != self->sequencer)
        return PyErr_Format(PyExc_ValueError, "the operation is another communicator's");
    if (!look_at_arrays(self, call[X], call[OUT], &a)) Py_RETURN_FALSE;
    const int64_t *need = operation->program->p.buffer_bytes;
    if ((need[INPUT] && a.x.nbytes < need[INPUT]) || (need[OUTPUT] && a.out.nbytes < need[OUTPUT])) Py_RETURN_FALSE;
    entry *e = &self->entries[entry_of(call[COLLECTIVE], call[REDOP], &a)];
    forget(e);
    e->collective = Py_NewRef(call[COLLECTIVE]), e->redop = Py_NewRef(call[REDOP]);
    e->root = Py_NewRef(call[ROOT]), e->variant = Py_NewRef(call[VARIANT]);
    Py_XINCREF(a.x.dtype);
    Py_XINCREF(a.out.dtype);
    e->x = a.x, e->out = a.out, e->overlap = a.overlap, e->distance = a.distance;
    e->heap_input = a.heap_input, e->heap_output = a.heap_output, e->changes = a.changes;
    e->operation = (Operation *)Py_NewRef(operation);
    Py_RETURN_TRUE;
}

/* find(collective, x, out, op, root, variant): an operation on these arrays, from one that calls like this remembered. */
static PyObject *DispatchCache_find(DispatchCache *self, PyObject *const *call, Py_ssize_t count) {
    arrays a;
    if (count != ASYNC) return PyErr_Format(PyExc_TypeError, "find takes six arguments of a call");
    const Operation *operation = remembered(self, call, &a);
    if (!operation) Py_RETURN_NONE;
    return operation_on(operation, call[X], call[OUT], a.input, a.output);
}

static int DispatchCache_init(DispatchCache *self, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"sequencer", "heap", "changes", NULL};
    PyObject *sequencer;
    if (self->heap.obj) return RAISED(PyExc_RuntimeError, "a DispatchCache is made once");
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!y*y*", names, &sequencer_type, &sequencer, &self->heap,
                                     &self->changes))
        return -1;
    if (self->changes.len != sizeof(int64_t) || (uintptr_t)self->changes.buf % sizeof(int64_t))
        return RAISED(PyExc_ValueError, "changes is one aligned int64");
    self->sequencer = (Sequencer *)Py_NewRef(sequencer);
    self->call = DispatchCache_call;
    return 0;
}

static int DispatchCache_traverse(DispatchCache *self, visitproc visit, void *arg) {
    Py_VISIT(self->sequencer);
    for (int k = 0; k < ENTRIES; k++) {
        Py_VISIT(self->entries[k].operation);
        Py_VISIT(self->entries[k].variant);
    }
    return 0;
}

static int DispatchCache_clear(DispatchCache *self) {
    Py_CLEAR(self->sequencer);
    for (int k = 0; k < ENTRIES; k++) forget(&self->entries[k]);
    return 0;
}

static void DispatchCache_dealloc(DispatchCache *self) {
    PyObject_GC_UnTrack(self);
    DispatchCache_clear(self);
    if (self->heap.obj) PyBuffer_Release(&self->heap);
    if (self->changes.obj) PyBuffer_Release(&self->changes);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyMethodDef dispatch_cache_methods[] = {
    {"remember", FAST(DispatchCache_remember), NULL},
    {"find", FAST(DispatchCache_find), NULL},
    {NULL, NULL, 0, NULL},
};

int dispatch_import_numpy(void) { return PyArray_ImportNumPyAPI(); }

PyTypeObject dispatch_cache_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "cxlemu._native.DispatchCache",
    .tp_doc = "Collective calls by their arguments: calls(collective, x, out, op, root, variant, async_op).",
    .tp_basicsize = sizeof(DispatchCache),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_vectorcall_offset = offsetof(DispatchCache, call),
    .tp_call = PyVectorcall_Call,
    .tp_new = PyType_GenericNew,
    .tp_init = (initproc)DispatchCache_init,
    .tp_traverse = (traverseproc)DispatchCache_traverse,
    .tp_clear = (inquiry)DispatchCache_clear,
    .tp_dealloc = (destructor)DispatchCache_dealloc,
    .tp_methods = dispatch_cache_methods,
};
