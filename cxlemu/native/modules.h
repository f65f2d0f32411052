/* Functions by which the binding's files add their types and functions to the module: they return 0, or -1 with an
 * exception. */
#ifndef CXLEMU_MODULES_H
#define CXLEMU_MODULES_H

#include <Python.h>

#include <stdbool.h>

#include "core.h"
#include "hostlock.h"
#include "interpreter.h"

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
int borrowed_add_to(PyObject *module);
int rows_add_to(PyObject *module);

/* Return the lock of a HostLock that was made, which the object owns; NULL with an exception for anything else. */
host_lock *host_lock_of(PyObject *object);

/* Return the memory of a Shadow, which the object owns; NULL with an exception for anything else. */
shadow *shadow_of(PyObject *object);

/* Return the pace of a Pacer, which the object owns; NULL with an exception for anything else. */
struct pacer *pace_pacer_of(PyObject *object);

#endif
