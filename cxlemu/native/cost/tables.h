/* A model from the tables of cxlemu/cost, which are buffers that stay as they are. */
#ifndef CXLEMU_COST_TABLES_H
#define CXLEMU_COST_TABLES_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "cost.h"

/* The bytes of an object, which lives as long as the list `kept`; how many items of `size` they are. NULL with an exception. */
const void *cost_keep_table(PyObject *kept, PyObject *object, size_t size, int64_t *count);

/* Fill in a model, all but its resources, from the dict of CostModel.tables. Returns the pace of each resource; NULL with an
 * exception for tables that do not fit together, or that name what is not there. */
const service_rate *cost_model_take(model *m, PyObject *tables, PyObject *kept);

#endif
