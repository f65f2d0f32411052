/* What each file of the binding adds to the module; -1 with an exception on failure. */
#ifndef CXLEMU_MODULES_H
#define CXLEMU_MODULES_H

#include <Python.h>

#include <stdbool.h>

#include "core.h"
#include "hostlock.h"

int add_lines(PyObject *module);
int add_lock(PyObject *module);
int add_pace(PyObject *module);
int add_shadow(PyObject *module);

/* The lock of a HostLock that was made; NULL with an exception for anything else. */
host_lock *lock_of(PyObject *object);

/* What a Python object is that is to be a rank's emulated memory; NULL with an exception for anything else. */
shadow *shadow_of(PyObject *object);

/* The same of a rank's pace. */
struct pacer *pacer_of(PyObject *object);

#endif
