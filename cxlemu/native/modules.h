/* What each file of the binding adds to the module; -1 with an exception on failure. */
#ifndef CXLEMU_MODULES_H
#define CXLEMU_MODULES_H

#include <Python.h>

#include <stdbool.h>

int add_lines(PyObject *module);

#endif
