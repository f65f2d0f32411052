/* A collective as a user calls it, comm.all_reduce(x, out=y): its arguments put in order without a Python frame. A call
 * that is not like one made before takes the slow_path at once; one whose arguments or result the method has to make or
 * to judge goes to the method that says what the collective is. */
#include "python.h"

#include <structmember.h>

enum { MOST_PARAMETERS = ARGUMENTS - 1 };

typedef struct {
    PyObject_HEAD vectorcallfunc call;
    PyObject *calls, *method;
    PyObject *parameters; /* names, those that may be positional first */
    int positional, count;
    enum argument places[MOST_PARAMETERS]; /* of each parameter */
    PyObject *defaults[ARGUMENTS]; /* for arguments that are not given; NULL for required ones */
    long rank;
    int replaces; /* without out, the result replaces x */
    int only_at_root; /* other ranks get no result */
    int makes_out; /* without out, the method makes one */
} Verb;

/* Put the arguments in their places. Return false for arguments that the method has to judge. */
static bool in_order(const Verb *self, PyObject *const *args, Py_ssize_t given, PyObject *names, PyObject **call) {
    if (given > self->positional) return false;
    for (int k = 0; k < ARGUMENTS; k++) call[k] = self->defaults[k];
    for (Py_ssize_t k = 0; k < given; k++) call[self->places[k]] = args[k];
    const Py_ssize_t named = names ? PyTuple_GET_SIZE(names) : 0;
    for (Py_ssize_t k = 0; k < named; k++) {
        int at = (int)given; /* so a name that was also given by position is not found */
        while (at < self->count && PyTuple_GET_ITEM(self->parameters, at) != PyTuple_GET_ITEM(names, k)) at++;
        if (at == self->count) return false;
        call[self->places[at]] = args[given + k];
    }
    for (int k = 0; k < ARGUMENTS; k++)
        if (!call[k]) return false;
    if (!PyLong_CheckExact(call[ROOT])) return false;
    if (call[OUT] == Py_None && self->replaces) call[OUT] = call[X];
    if (self->only_at_root) {
        const long root = PyLong_AsLong(call[ROOT]);
        if (root == -1) PyErr_Clear();
        if (root != self->rank) call[OUT] = Py_None;
    }
    return true;
}

static PyObject *Verb_call(PyObject *callable, PyObject *const *args, size_t nargsf, PyObject *names) {
    const Verb *self = (Verb *)callable;
    PyObject *call[ARGUMENTS], *result;
    if (in_order(self, args, PyVectorcall_NARGS(nargsf), names, call)) {
        if (dispatch_find(self->calls, call, &result)) return result;
        if (!self->makes_out || call[OUT] != Py_None) return dispatch_slow_path(self->calls, call);
    }
    return PyObject_Vectorcall(self->method, args, nargsf, names);
}

static int Verb_init(Verb *self, PyObject *args, PyObject *kwargs) {
    static char *keywords[] = {"calls", "method",   "parameters",   "positional", "places", "defaults",
                               "rank",  "replaces", "only_at_root", "makes_out",  NULL};
    PyObject *calls, *method, *parameters, *places, *defaults;
    if (self->calls) return RAISED(PyExc_RuntimeError, "a Verb is made once");
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!OO!iO!O!lppp", keywords, &dispatch_cache_type, &calls, &method,
                                     &PyTuple_Type, &parameters, &self->positional, &PyTuple_Type, &places,
                                     &PyTuple_Type, &defaults, &self->rank, &self->replaces, &self->only_at_root,
                                     &self->makes_out))
        return -1;
    const Py_ssize_t count = PyTuple_GET_SIZE(parameters);
    if (count > MOST_PARAMETERS || PyTuple_GET_SIZE(places) != count || self->positional < 0 ||
        self->positional > count || PyTuple_GET_SIZE(defaults) != ARGUMENTS)
        return RAISED(PyExc_ValueError, "a verb has a place for each parameter, and a default or none for each place");
    for (Py_ssize_t k = 0; k < count; k++) {
        const long at = PyLong_AsLong(PyTuple_GET_ITEM(places, k));
        if (at < 0 || at >= ARGUMENTS) {
            if (!PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, "there is no such place");
            return -1;
        }
        self->places[k] = (enum argument)at;
    }
    for (int k = 0; k < ARGUMENTS; k++) {
        PyObject *value = PyTuple_GET_ITEM(defaults, k);
        self->defaults[k] = value == Py_Ellipsis ? NULL : Py_NewRef(value);
    }
    self->calls = Py_NewRef(calls), self->method = Py_NewRef(method), self->parameters = Py_NewRef(parameters);
    self->count = (int)count;
    self->call = Verb_call;
    return 0;
}

static int Verb_traverse(Verb *self, visitproc visit, void *arg) {
    Py_VISIT(self->calls);
    Py_VISIT(self->method);
    return 0;
}

static int Verb_clear(Verb *self) {
    Py_CLEAR(self->calls);
    Py_CLEAR(self->method);
    return 0;
}

static void Verb_dealloc(Verb *self) {
    PyObject_GC_UnTrack(self);
    Verb_clear(self);
    Py_XDECREF(self->parameters);
    for (int k = 0; k < ARGUMENTS; k++) Py_XDECREF(self->defaults[k]);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyObject *Verb_doc(Verb *self, void *Py_UNUSED(closure)) {
    return PyObject_GetAttrString(self->method, "__doc__");
}

static PyObject *Verb_repr(Verb *self) { return PyObject_Repr(self->method); }

static PyGetSetDef verb_attributes[] = {{"__doc__", (getter)Verb_doc, NULL, NULL, NULL},
                                        {NULL, NULL, NULL, NULL, NULL}};

static PyMemberDef verb_members[] = {
    {"__wrapped__", T_OBJECT_EX, offsetof(Verb, method), READONLY, "the method, for inspect.signature"},
    {NULL, 0, 0, 0, NULL},
};

PyTypeObject verb_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "cxlemu._native.Verb",
    .tp_basicsize = sizeof(Verb),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_vectorcall_offset = offsetof(Verb, call),
    .tp_call = PyVectorcall_Call,
    .tp_new = PyType_GenericNew,
    .tp_init = (initproc)Verb_init,
    .tp_traverse = (traverseproc)Verb_traverse,
    .tp_clear = (inquiry)Verb_clear,
    .tp_dealloc = (destructor)Verb_dealloc,
    .tp_repr = (reprfunc)Verb_repr,
    .tp_getset = verb_attributes,
    .tp_members = verb_members,
};
