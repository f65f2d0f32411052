/* Python's type HostLock: an emulated host's lock. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "hostlock.h"
#include "modules.h"

typedef struct {
    PyObject_HEAD Py_buffer word;
} HostLock;

static host_lock *word_of(HostLock *self) { return self->word.buf; }

static int HostLock_init(HostLock *self, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"word", NULL};
    if (self->word.obj) return RAISED(PyExc_RuntimeError, "a HostLock is made once");
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "w*", names, &self->word)) return -1;
    if (self->word.len < HOST_LOCK_BYTES || (uintptr_t)self->word.buf % _Alignof(host_lock)) {
        PyErr_SetString(PyExc_ValueError, "a lock needs 64 bytes, aligned to 8");
        PyBuffer_Release(&self->word);
        return -1;
    }
    if (!host_lock_make(word_of(self))) {
        PyErr_SetString(PyExc_OSError, "this system has no locks that outlive their holders");
        PyBuffer_Release(&self->word);
        return -1;
    }
    return 0;
}

static void HostLock_dealloc(HostLock *self) {
    if (self->word.obj) {
        host_lock_drop(
            word_of(self)); /* should Ctrl-C have left it taken: a holder's list of locks lies in the locks */
        PyBuffer_Release(&self->word);
    }
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static bool is_made(HostLock *self) {
    if (!self->word.obj) PyErr_SetString(PyExc_RuntimeError, "the lock was never made");
    return self->word.obj != NULL;
}

/* acquire(seconds) -> whether this thread has it now */
static PyObject *HostLock_acquire(HostLock *self, PyObject *argument) {
    const double seconds = PyFloat_AsDouble(argument);
    if (PyErr_Occurred() || !is_made(self)) return NULL;
    bool taken = host_lock_take(word_of(self), 0);
    if (!taken && seconds > 0) {
        Py_BEGIN_ALLOW_THREADS
        taken = host_lock_take(word_of(self), seconds < 1e6 ? seconds : 1e6);
        Py_END_ALLOW_THREADS
    }
    return PyBool_FromLong(taken);
}

static PyObject *HostLock_release(HostLock *self, PyObject *none) {
    (void)none;
    if (!is_made(self)) return NULL;
    host_lock_drop(word_of(self));
    Py_RETURN_NONE;
}

static PyMethodDef lock_methods[] = {
    {"acquire", (PyCFunction)HostLock_acquire, METH_O, NULL},
    {"release", (PyCFunction)HostLock_release, METH_NOARGS, "release(): let go, however often this thread took it."},
    {NULL, NULL, 0, NULL},
};

static PyTypeObject HostLockType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "cxlemu._native.HostLock",
    .tp_doc = "A lock in shared memory, among threads and processes. The kernel passes it on when its holder dies.",
    .tp_basicsize = sizeof(HostLock),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = PyType_GenericNew,
    .tp_init = (initproc)HostLock_init,
    .tp_dealloc = (destructor)HostLock_dealloc,
    .tp_methods = lock_methods,
};

host_lock *host_lock_of(PyObject *object) {
    if (PyObject_TypeCheck(object, &HostLockType))
        return is_made((HostLock *)object) ? word_of((HostLock *)object) : NULL;
    PyErr_SetString(PyExc_TypeError, "a lock is a HostLock");
    return NULL;
}

int host_lock_add_to(PyObject *module) { return PyModule_AddType(module, &HostLockType); }
