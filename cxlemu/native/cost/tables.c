#include "tables.h"

const void *cost_keep_table(PyObject *kept, PyObject *object, size_t size, int64_t *count) {
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

/* Return whether all resources of a route exist, for any rank of the host. */
static bool leads_somewhere(const model *m, const route *way, int64_t host, int64_t card) {
    for (int64_t k = 0; k < 2 * way->hops; k++) {
        const hop *h = k < way->hops ? &way->to_pool[k] : &way->from_pool[k - way->hops];
        const int64_t owner = m->card[card].owner_host;
        const int64_t first = h->first + h->by_host * host + h->by_card * card + h->by_owner * owner;
        if (h->by_rank < 0 || first < 0 || first + (int64_t)h->by_rank * (m->rank_count - 1) >= m->resource_count)
            return false;
    }
    return true;
}

static bool is_right(const model *m, const service_rate *rates) {
    const int64_t cards = m->cards, ranks = m->rank_count, resources = m->resource_count;
    const int64_t one_table = m->hosts * cards, pairs = one_table * (m->change_count + 1);
    bool right = fits(m->first_read, cards, resources) && fits(m->first_write, cards, resources) &&
                 fits(m->first_total, cards, resources);
    for (int64_t k = 0; k < m->cost_rows; k++)
        right = right && fits(m->costs[k].first_to, ranks, resources) &&
                fits(m->costs[k].first_from, ranks, resources) && fits(m->costs[k].first_both, ranks, resources) &&
                fits(m->costs[k].first_fold, ranks, resources) && m->costs[k].coherence_ns >= 0;
    for (int64_t k = 0; k < cards; k++)
        right = right && fits(m->card[k].costs, 1, m->cost_rows) && m->card[k].owner_host < m->hosts;
    for (int64_t k = 0; k < resources; k++)
        right = right && rates[k].rate >= 0 && rates[k].message_ns >= 0 && rates[k].payload_bytes >= 1 &&
                rates[k].flit_bytes >= 1 && rates[k].flit_bytes <= 65536 && rates[k].buffer_bytes >= 0 &&
                rates[k].buffer_bytes <= LARGEST_BYTES && rates[k].request_bytes >= 0 &&
                rates[k].request_bytes <= (k ? 65536 : 0);
    for (int64_t k = 0; k < pairs; k++) right = right && m->route_of[k] >= -1 && m->route_of[k] < m->route_count;
    for (int64_t k = 0; k < ranks; k++) right = right && m->host_of[k] >= 0 && m->host_of[k] < m->hosts;
    for (int64_t k = 0; k < m->route_count; k++)
        right = right && m->routes[k].hops >= 0 && m->routes[k].hops <= MAX_HOPS && m->routes[k].latency_ns >= 0;
    for (int64_t k = 0; right && k < pairs; k++)
        if (m->route_of[k] >= 0)
            right = leads_somewhere(m, &m->routes[m->route_of[k]], k % one_table / cards, k % cards);
    for (int64_t k = 1; k < m->change_count; k++) right = right && m->changes_ns[k - 1] <= m->changes_ns[k];
    return right;
}

const service_rate *cost_model_take(model *m, PyObject *tables, PyObject *kept) {
    static char *names[] = {"service_rates", "routes",     "route_of",    "changes_ns",  "cards",           "host_of",
                            "costs",         "first_read", "first_write", "first_total", "multiprocessors", NULL};
    PyObject *none = PyTuple_New(0), *rate_rows, *routes, *route_of, *changes, *card_rows, *host_of, *cost_rows;
    int64_t resources, route_count, pairs, cards, ranks, costs_count;
    if (!none) return NULL;
    const int parsed = PyArg_ParseTupleAndKeywords(none, tables, "OOOOOOOiiii", names, &rate_rows, &routes, &route_of,
                                                   &changes, &card_rows, &host_of, &cost_rows, &m->first_read,
                                                   &m->first_write, &m->first_total, &m->multiprocessors);
    Py_DECREF(none);
    if (!parsed) return NULL;
    const service_rate *rates = cost_keep_table(kept, rate_rows, sizeof *rates, &resources);
    m->routes = rates ? cost_keep_table(kept, routes, sizeof(route), &route_count) : NULL;
    m->route_of = m->routes ? cost_keep_table(kept, route_of, sizeof(int32_t), &pairs) : NULL;
    m->changes_ns = m->route_of ? cost_keep_table(kept, changes, sizeof(int64_t), &m->change_count) : NULL;
    m->card = m->changes_ns ? cost_keep_table(kept, card_rows, sizeof(card_row), &cards) : NULL;
    m->host_of = m->card ? cost_keep_table(kept, host_of, sizeof(int32_t), &ranks) : NULL;
    m->costs = m->host_of ? cost_keep_table(kept, cost_rows, sizeof(costs), &costs_count) : NULL;
    if (!m->costs) return NULL;
    const int64_t tables_count = m->change_count + 1;
    if (m->multiprocessors < 0 || m->multiprocessors > MAX_MULTIPROCESSORS || !costs_count || costs_count > INT32_MAX ||
        !cards || cards > INT32_MAX || pairs % (cards * tables_count) || !ranks || ranks > INT32_MAX / MAX_STREAMS ||
        resources > INT32_MAX || route_count > INT32_MAX || pairs / cards > INT32_MAX) {
        PyErr_SetString(PyExc_ValueError, "the tables of the model do not fit together");
        return NULL;
    }
    m->cost_rows = (int32_t)costs_count, m->cards = (int32_t)cards, m->hosts = (int32_t)(pairs / cards / tables_count);
    m->rank_count = (int32_t)ranks, m->resource_count = (int32_t)resources, m->route_count = (int32_t)route_count;
    m->changed = 0, m->no_way_to = -1;
    if (is_right(m, rates)) return rates;
    PyErr_SetString(PyExc_ValueError, "the tables of the model name what is not there");
    return NULL;
}
