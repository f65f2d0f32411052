/* What each file of the binding adds to the module; -1 with an exception on failure. */
#ifndef CXLEMU_MODULES_H
#define CXLEMU_MODULES_H

#include <Python.h>

#include <stdbool.h>

#include "core.h"
#include "hostlock.h"

int lines_add_to(PyObject *module);
int mapping_add_to(PyObject *module);
int bus_add_to(PyObject *module);
int host_lock_add_to(PyObject *module);
int pace_add_to(PyObject *module);
int pulse_add_to(PyObject *module);
int shadow_add_to(PyObject *module);
int program_add_to(PyObject *module);
int several_add_to(PyObject *module);
int courier_add_to(PyObject *module);
int straight_add_to(PyObject *module);
int borrowed_add_to(PyObject *module);

/* The lock of a HostLock that was made; NULL with an exception for anything else. */
host_lock *host_lock_of(PyObject *object);

/* What a Python object is that is to be a rank's emulated memory; NULL with an exception for anything else. */
shadow *shadow_of(PyObject *object);

/* The same of a rank's pace. */
struct pacer *pace_pacer_of(PyObject *object);

#endif
