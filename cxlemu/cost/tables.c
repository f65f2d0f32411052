#include "tables.h"

const void *keep(PyObject *kept, PyObject *object, size_t size, int64_t *count) {
    PyObject *view = PyMemoryView_FromObject(object);
    if (!view) return NULL;
    const Py_buffer *buffer = PyMemoryView_GET_BUFFER(view);
    const void *bytes = buffer->buf;
    if (!PyBuffer_IsContiguous(buffer, 'C') || buffer->len % (Py_ssize_t)size) {
        PyErr_SetString(PyExc_ValueError, "a table has rows of another size");
        bytes = NULL;
    }
    *count = buffer->len / (Py_ssize_t)size;
    if (PyList_Append(kept, view) < 0) bytes = NULL;
    Py_DECREF(view);
    return bytes;
}

static bool fits(int64_t first, int64_t count, int64_t all) { return first >= 0 && count >= 0 && first + count <= all; }

/* Whether the resources of a route are there from every host to every card. */
static bool leads_somewhere(const model *m, const route *way) {
    bool right = way->hops >= 0 && way->hops <= MAX_HOPS && way->latency_ns >= 0;
    for (int64_t h = 0; right && h < 2 * way->hops; h++) {
        const hop *at = h < way->hops ? &way->to_pool[h] : &way->from_pool[h - way->hops];
        const int64_t most = at->first + (int64_t)at->by_host * (m->hosts - 1) + (int64_t)at->by_card * (m->cards - 1);
        right = at->first >= 0 && at->by_host >= 0 && at->by_card >= 0 && most < m->resource_count;
    }
    return right;
}

static bool is_right(const model *m, const pace *paces) {
    const int64_t cards = m->cards, ranks = m->rank_count, resources = m->resource_count;
    bool right = fits(m->first_read, cards, resources) && fits(m->first_write, cards, resources) &&
                 fits(m->first_total, cards, resources) && fits(m->first_to, ranks, resources) &&
                 fits(m->first_from, ranks, resources) && fits(m->first_both, ranks, resources);
    for (int64_t k = 0; right && k < resources; k++)
        right = paces[k].rate >= 0 && paces[k].message_ns >= 0 && paces[k].payload_bytes >= 1 && paces[k].flit_bytes >= 1 &&
                paces[k].flit_bytes <= 65536;
    for (int64_t k = 0; right && k < m->hosts * cards; k++) right = m->route_of[k] >= 0 && m->route_of[k] < m->route_count;
    for (int64_t k = 0; right && k < ranks; k++) right = m->host_of[k] >= 0 && m->host_of[k] < m->hosts;
    for (int64_t k = 0; right && k < m->route_count; k++) right = leads_somewhere(m, &m->routes[k]);
    return right;
}

const pace *model_take(model *m, PyObject *tables, PyObject *kept) {
    static char *names[] = {"paces", "routes", "route_of", "card_latency_ns", "host_of", "costs", "first_read", "first_write",
                            "first_total", "first_to", "first_from", "first_both", NULL};
    PyObject *none = PyTuple_New(0), *pace_rows, *routes, *route_of, *latencies, *host_of, *cost_row;
    int64_t resources, route_count, pairs, cards, ranks, cost_rows;
    if (!none) return NULL;
    const int parsed = PyArg_ParseTupleAndKeywords(
        none, tables, "OOOOOOiiiiii", names, &pace_rows, &routes, &route_of, &latencies, &host_of, &cost_row, &m->first_read,
        &m->first_write, &m->first_total, &m->first_to, &m->first_from, &m->first_both);
    Py_DECREF(none);
    if (!parsed) return NULL;
    const pace *paces = keep(kept, pace_rows, sizeof *paces, &resources);
    m->routes = paces ? keep(kept, routes, sizeof(route), &route_count) : NULL;
    m->route_of = m->routes ? keep(kept, route_of, sizeof(int32_t), &pairs) : NULL;
    m->card_latency_ns = m->route_of ? keep(kept, latencies, sizeof(int64_t), &cards) : NULL;
    m->host_of = m->card_latency_ns ? keep(kept, host_of, sizeof(int32_t), &ranks) : NULL;
    const costs *cost = m->host_of ? keep(kept, cost_row, sizeof(costs), &cost_rows) : NULL;
    if (!cost) return NULL;
    if (cost_rows != 1 || !cards || cards > MAX_CARDS || pairs % cards || !ranks || ranks > INT32_MAX / MAX_STREAMS ||
        resources > INT32_MAX || route_count > INT32_MAX || pairs / cards > INT32_MAX) {
        PyErr_SetString(PyExc_ValueError, "the tables of the model do not fit together");
        return NULL;
    }
    m->cost = *cost;
    m->cards = (int32_t)cards, m->hosts = (int32_t)(pairs / cards), m->rank_count = (int32_t)ranks;
    m->resource_count = (int32_t)resources, m->route_count = (int32_t)route_count;
    if (is_right(m, paces)) return paces;
    PyErr_SetString(PyExc_ValueError, "the tables of the model name what is not there");
    return NULL;
}
