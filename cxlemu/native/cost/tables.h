/* Makes a model from the tables of cxlemu/cost, buffers that do not change while it lives. */
#ifndef CXLEMU_COST_TABLES_H
#define CXLEMU_COST_TABLES_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "cost.h"

/* Return the bytes of an object, which lives as long as the list `kept`; *count: how many items of `size` they are. NULL with
 * an exception on failure. */
const void *cost_keep_table(PyObject *kept, PyObject *object, size_t size, int64_t *count);

/* Fill in a model, without its resources, from the dict of CostModel.tables. Returns each resource's service rate; NULL with an
 * exception for tables that do not fit together, or that name something that does not exist. */
const service_rate *cost_model_take(model *m, PyObject *tables, PyObject *kept);

#endif
