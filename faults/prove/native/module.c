/* faults.prove._pass: binds the happens-before pass, which reads the records of plans where they lie in memory. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "interpreter.h"
#include "constants.h"
#include "layout_module.h"
#include "pass.h"

typedef struct {
    Py_buffer *view;
    int views, room;
} held;

/* Return the array's bytes, which stay held until the pass is over; NULL with an exception unless they are whole items. */
static void *array_of(held *h, PyObject *object, size_t item, int64_t *count) {
    if (h->views == h->room) {
        const int more = h->room ? 2 * h->room : 64;
        Py_buffer *moved = PyMem_Realloc(h->view, (size_t)more * sizeof *moved);
        if (!moved) return PyErr_NoMemory();
        h->view = moved, h->room = more;
    }
    if (PyObject_GetBuffer(object, &h->view[h->views], PyBUF_C_CONTIGUOUS) < 0) return NULL;
    const Py_buffer *view = &h->view[h->views++];
    if (view->len % (Py_ssize_t)item)
        return PyErr_Format(PyExc_ValueError, "an array of %zd bytes has no whole items", view->len);
    *count = view->len / (Py_ssize_t)item;
    return view->buf ? view->buf : h; /* an empty array may have no address */
}

static bool streams_in(held *h, program *part, PyObject *streams) {
    const Py_ssize_t count = PyList_Size(streams);
    if (count < 0) return false;
    if (count > MAX_STREAMS) return REFUSE("a rank has up to %d streams", MAX_STREAMS);
    part->stream_count = (int32_t)count;
    for (Py_ssize_t s = 0; s < count; s++)
        if (!(part->records[s] = array_of(h, PyList_GET_ITEM(streams, s), sizeof(record), &part->lengths[s])))
            return false;
    return true;
}

static bool contribution_fits(const pass *p, const int64_t *of, int64_t words) {
    for (int64_t k = 0; k < words; k++)
        if (of[k] < 0 || of[k] > INT64_MAX / 2) return false;
    if (words == PRODUCT_WORDS &&
        (of[4] >= p->ranks || of[5] >= MAX_BUFFERS || of[6] < 1 || of[7] > INT64_MAX / 2 / of[6]))
        return false;
    return of[0] < p->ranks;
}

/* Take in a rank's contract: whole pieces within the output, folded from contributions of ranks that exist. */
static bool contract_in(held *h, const pass *p, plan *whole, int32_t rank, PyObject *array, int64_t output_bytes) {
    int64_t words;
    const int64_t *piece = array_of(h, array, sizeof *piece, &words), *end = piece + words;
    if (!piece) return false;
    whole->contract[rank] = piece, whole->contract_words[rank] = words;
    while (piece < end) {
        const int64_t left = end - piece - PIECE_WORDS, each = left >= 0 ? piece[4] : 0;
        bool fits = (each == FOLD_WORDS || each == PRODUCT_WORDS) && piece[3] >= 1 && piece[3] <= left / each &&
                    piece[2] >= 1;
        fits = fits && piece[5] >= 0 && piece[5] <= piece[3];
        fits = fits && piece[0] >= 0 && piece[1] >= 0 && piece[1] <= output_bytes &&
               piece[0] <= output_bytes - piece[1];
        for (int64_t k = 0; fits && k < piece[3]; k++)
            fits = contribution_fits(p, piece + PIECE_WORDS + k * each, each);
        if (!fits) return REFUSE("a contract is of whole pieces of the output");
        piece += PIECE_WORDS + piece[3] * each;
    }
    return true;
}

/* Whether every COMPUTE names a kernel, and its operands lie within their buffers. If not, *stream and *at say which one. */
static bool kernels_fit(const plan *whole, const program *part, int32_t *stream, int64_t *at) {
    for (*stream = 0; *stream < part->stream_count; ++*stream)
        for (*at = 0; *at < part->lengths[*stream]; ++*at) {
            const record *r = &part->records[*stream][*at];
            if (r->op == COMPUTE && !kernel_fits(whole, part, r)) return false;
        }
    return true;
}

/* Take in a rank's part: number of events, bytes of its buffers, where these lie, its contract, its streams. */
static bool part_in(held *h, pass *p, plan *whole, int32_t rank, PyObject *described, int64_t extent_bytes) {
    program *part = &whole->part[rank];
    PyObject *bytes, *lodgings, *contract, *streams;
    int64_t count, lodged;
    if (!PyArg_ParseTuple(described, "iOOOO!", &part->event_count, &bytes, &lodgings, &contract, &PyList_Type,
                          &streams))
        return false;
    const int64_t *sizes = array_of(h, bytes, sizeof *sizes, &count);
    if (!sizes) return false;
    const lodging *lies = array_of(h, lodgings, sizeof *lies, &lodged);
    if (!lies || !streams_in(h, part, streams)) return false;
    if (count > MAX_BUFFERS || lodged != count || part->event_count < 0)
        return REFUSE("a rank has up to %d buffers, each lies somewhere", MAX_BUFFERS);
    part->buffer_count = (int32_t)count;
    if (!contract_in(h, p, whole, rank, contract, count > 1 ? sizes[1] : 0)) return false;
    for (int k = 0; k < count; k++) {
        const lodging *l = &lies[k];
        part->buffer_bytes[k] = sizes[k], whole->lodging[rank][k] = *l;
        bool in_pool = l->card >= 0 && l->card < part->card_count && l->offset >= 0;
        in_pool = in_pool && sizes[k] <= extent_bytes && l->offset <= extent_bytes - sizes[k];
        if (l->root < 0 || l->root >= count || l->at < 0 || l->at > INT64_MAX / 2 || (l->card >= 0 && !in_pool))
            return REFUSE("a buffer lies outside of what there is");
    }
    int32_t stream;
    int64_t at;
    if (!program_check(part, &stream, &at) || !kernels_fit(whole, part, &stream, &at))
        return REFUSE("rank %d, stream %d, instruction %lld is none that could be executed", rank, stream,
                      (long long)at);
    if (part->event_count > p->events_max) p->events_max = part->event_count;
    if (part->stream_count > p->per_rank) p->per_rank = part->stream_count;
    return true;
}

static bool plan_in(held *h, pass *p, plan *whole, PyObject *described, const program *shape, int64_t extent_bytes) {
    PyObject *regions, *groups, *kernels, *parts;
    long long rounds;
    int meets, dtype, redop, commutes;
    int64_t region_count, group_count;
    if (!PyArg_ParseTuple(described, "OOOLpiipO!", &regions, &groups, &kernels, &rounds, &meets, &dtype, &redop,
                          &commutes, &PyList_Type, &parts))
        return false;
    const region *r = array_of(h, regions, sizeof *r, &region_count);
    if (!r) return false;
    const group *g = array_of(h, groups, sizeof *g, &group_count);
    if (!g || !(whole->kernels = array_of(h, kernels, sizeof *whole->kernels, &whole->kernel_count))) return false;
    if (PyList_GET_SIZE(parts) != p->ranks || rounds < 0 || region_count > INT32_MAX || group_count > INT32_MAX)
        return REFUSE("a plan has a part for every rank");
    whole->rounds = rounds, whole->meets = meets, whole->dtype = dtype, whole->redop = redop,
    whole->commutes = commutes;
    whole->part = pass_zeroed(p, (size_t)p->ranks, sizeof *whole->part);
    whole->lodging = pass_zeroed(p, (size_t)p->ranks, sizeof *whole->lodging);
    whole->contract = pass_zeroed(p, (size_t)p->ranks, sizeof *whole->contract);
    whole->contract_words = pass_zeroed(p, (size_t)p->ranks, sizeof *whole->contract_words);
    for (int32_t rank = 0; rank < p->ranks; rank++) {
        program *part = &whole->part[rank];
        *part = *shape;
        part->regions = r, part->groups = g;
        part->region_count = (int32_t)region_count, part->group_count = (int32_t)group_count;
        if (!part_in(h, p, whole, rank, PyList_GET_ITEM(parts, rank), extent_bytes)) return false;
    }
    return true;
}

/* Link the streams of each host in a circle. */
static void link_neighbours(pass *p) {
    for (int32_t rank = 0, next = 0; rank < p->ranks; rank++) {
        const int32_t first = rank * p->per_rank;
        for (next = (rank + 1) % p->ranks; p->host[next * p->per_rank] != p->host[first];) next = (next + 1) % p->ranks;
        for (int32_t s = first; s < first + p->per_rank; s++) p->neighbour[s] = (uint32_t)s + 1;
        p->neighbour[first + p->per_rank - 1] = (uint32_t)(next * p->per_rank);
    }
}

/* Allocate what the pass keeps of streams, lines, buffers and doorbells. */
static void prepare(pass *p, const program *shape) {
    const size_t ranks = (size_t)p->ranks, streams = ranks * (size_t)p->per_rank, calls = (size_t)p->calls;
    p->streams = (int32_t)streams;
    p->call = pass_zeroed(p, ranks, sizeof *p->call), p->begun = pass_zeroed(p, ranks, sizeof *p->begun);
    p->now = pass_zeroed(p, streams, sizeof *p->now), p->ready = pass_zeroed(p, streams, sizeof *p->ready);
    p->began = pass_zeroed(p, (calls + 1) * streams, sizeof *p->began); /* a rank may have ended its last call */
    p->events = pass_zeroed(p, ranks * (size_t)p->events_max, sizeof *p->events);
    p->open = pass_zeroed(p, ranks, sizeof *p->open);
    p->opens = pass_zeroed(p, ranks, sizeof *p->opens), p->open_room = pass_zeroed(p, ranks, sizeof *p->open_room);
    p->bells = pass_zeroed(p, ((size_t)shape->layout.slots * (size_t)shape->layout.doorbells_per_rank + 1) * ranks,
                           sizeof *p->bells);
    p->neighbour = pass_zeroed(p, streams, sizeof *p->neighbour);
    link_neighbours(p);
    p->known = pass_zeroed(p, streams, sizeof *p->known);
    p->nothing = clock_of_nothing(p);
    p->joint = clock_know(p->nothing);
    for (size_t s = 0; s < streams; s++) p->known[s] = clock_know(p->nothing);
    p->cards = pass_zeroed(p, (size_t)shape->card_count, sizeof *p->cards);
    for (int32_t k = 0; k < shape->card_count; k++) map_begin(p, &p->cards[k]);
    p->locals = pass_zeroed(p, ranks * MAX_BUFFERS, sizeof *p->locals);
    p->card_contents = pass_zeroed(p, (size_t)shape->card_count, sizeof *p->card_contents);
    for (int32_t k = 0; k < shape->card_count; k++) contents_begin(p, &p->card_contents[k]);
    p->local_contents = pass_zeroed(p, ranks * MAX_BUFFERS, sizeof *p->local_contents);
}

static void clean(pass *p, const program *shape, int plans) {
    const size_t bells = ((size_t)shape->layout.slots * (size_t)shape->layout.doorbells_per_rank + 1) *
                         (size_t)p->ranks;
    for (int k = 0; p->plan && k < plans; k++) {
        free(p->plan[k].part), free(p->plan[k].lodging);
        free(p->plan[k].contract), free(p->plan[k].contract_words);
    }
    for (int32_t k = 0; p->cards && k < shape->card_count; k++) map_free(&p->cards[k]);
    for (int32_t k = 0; p->locals && k < p->ranks * MAX_BUFFERS; k++) map_free(&p->locals[k]);
    for (size_t k = 0; p->bells && k < bells; k++) {
        for (int r = 0; r < p->bells[k].rings; r++) clock_forget(p->bells[k].ring[r].at.known);
        free(p->bells[k].ring), free(p->bells[k].reader), free(p->bells[k].carried.run);
    }
    for (int32_t k = 0; p->events && k < p->ranks * p->events_max; k++) clock_forget(p->events[k].known);
    for (int32_t k = 0; p->known && k < p->streams; k++) clock_forget(p->known[k]);
    clock_forget(p->joint), clock_forget(p->nothing);
    for (int32_t k = 0; p->opens && p->open && k < p->ranks; k++) {
        for (int d = 0; d < p->opens[k]; d++) drain_drop(p->open[k][d]);
        free(p->open[k]);
    }
    for (int32_t k = 0; p->card_contents && k < shape->card_count; k++) free(p->card_contents[k].run);
    for (int32_t k = 0; p->local_contents && k < p->ranks * MAX_BUFFERS; k++) free(p->local_contents[k].run);
    for (int k = 0; k < 4; k++) free(p->folding[k].run);
    for (int k = 0; k < p->holdings; k++) free(p->held[k].got.run);
    free(p->held), free(p->contribution);
    free(p->card_contents), free(p->local_contents), free(p->laid.run), free(p->term), free(p->slot_of_term);
    free(p->plan), free(p->call), free(p->begun), free(p->now), free(p->ready), free(p->began), free(p->events),
        free(p->open);
    free(p->opens), free(p->open_room), free(p->bells), free(p->known), free(p->neighbour), free(p->cards),
        free(p->locals);
}

/* Return (call, rank, stream, instruction) of a step. The user's stores before a call are instruction -1, those after it one
 * more than the last. */
static PyObject *place_of(const pass *p, event e) {
    if (p->verdict == PROVED || e.at == 0) Py_RETURN_NONE;
    int32_t call = 0;
    while (call + 1 < p->calls && p->began[(int64_t)(call + 1) * p->streams + e.stream] &&
           p->began[(int64_t)(call + 1) * p->streams + e.stream] <= e.at)
        call++;
    const long long at = (long long)e.at - p->began[(int64_t)call * p->streams + e.stream] - 1;
    return Py_BuildValue("iiiL", call, rank_of(p, e.stream), (int)(e.stream % (uint32_t)p->per_rank), at);
}

static PyObject *told(const pass *p) {
    return Py_BuildValue("iiiiLNNiL", (int)p->verdict, (int)p->reason, p->found.rule, p->found.detail,
                         (long long)p->instructions, place_of(p, p->found.at), place_of(p, p->found.by), p->found.card,
                         (long long)p->found.line);
}

typedef struct {
    PyObject *hosts, *strips, *plans, *plan_of, *epochs;
    long long extent_bytes;
} arguments;

/* Take in all arguments, and check them. */
static bool taken_in(held *h, pass *p, const program *shape, const arguments *a) {
    int64_t hosts, strips, calls, epochs;
    const int32_t *host = array_of(h, a->hosts, sizeof *host, &hosts);
    if (!host || !(p->strip = array_of(h, a->strips, sizeof *p->strip, &strips))) return false;
    if (!(p->plan_of = array_of(h, a->plan_of, sizeof *p->plan_of, &calls))) return false;
    if (!(p->epoch_of = array_of(h, a->epochs, sizeof *p->epoch_of, &epochs))) return false;
    const Py_ssize_t plans = PyList_GET_SIZE(a->plans);
    if (hosts != p->ranks || strips != p->ranks || calls != epochs || calls > INT32_MAX || plans < 1)
        return REFUSE("a host and a strip for every rank, a plan and an epoch for every call");
    p->calls = (int32_t)calls, p->per_rank = 1, p->events_max = 1;
    p->plan = pass_zeroed(p, (size_t)plans, sizeof *p->plan);
    for (Py_ssize_t k = 0; k < plans; k++)
        if (!plan_in(h, p, &p->plan[k], PyList_GET_ITEM(a->plans, k), shape, a->extent_bytes)) return false;
    for (int32_t k = 0; k < p->calls; k++)
        if (p->plan_of[k] < 0 || p->plan_of[k] >= plans || p->epoch_of[k] < 1 ||
            (k && p->epoch_of[k] < p->epoch_of[k - 1]))
            return REFUSE("calls are of the plans, and epochs rise from 1");
    for (int32_t k = 0; k < p->ranks; k++) {
        const int64_t *s = p->strip[k];
        bool fits = s[0] >= 0 && s[0] < shape->card_count && s[1] >= 0 && s[1] % LINE_BYTES == 0 && s[2] >= 0;
        fits = fits && s[2] <= a->extent_bytes && s[1] <= a->extent_bytes - s[2];
        if (!fits) return REFUSE("a strip lies outside of the heap");
    }
    int32_t *of_streams = PyMem_Malloc((size_t)p->ranks * (size_t)p->per_rank * sizeof *of_streams);
    if (!of_streams) return PyErr_NoMemory();
    for (int32_t k = 0; k < p->ranks * p->per_rank; k++) of_streams[k] = host[k / p->per_rank];
    p->host = of_streams;
    return true;
}

static bool interrupted(void) { return PyErr_CheckSignals() < 0; }

/* Run the pass; returns whether it decided. Otherwise there is an exception. */
static bool decided(held *h, pass *p, const program *shape, const arguments *a) {
    switch (setjmp(p->stop)) {
    case 0:
        if (!taken_in(h, p, shape, a)) return false;
        prepare(p, shape);
        pass_run(p);
        return true;
    case DECIDED: return true;
    case INTERRUPTED: return false; /* with the exception that a signal's handler raised */
    default: PyErr_NoMemory(); return false;
    }
}

static PyObject *run_pass(PyObject *Py_UNUSED(module), PyObject *args) {
    program shape = {0};
    pass p = {0};
    held h = {0};
    arguments a;
    PyObject *result = NULL;
    int obliges;
    PyObject *given;
    if (!PyArg_ParseTuple(args, "OOOO!OOIp", &given, &a.hosts, &a.strips, &PyList_Type, &a.plans, &a.plan_of, &a.epochs,
                          &p.without, &obliges) ||
        layout_take(given, &shape.layout) < 0)
        return NULL;
    shape.card_count = shape.layout.cards, a.extent_bytes = shape.layout.extent_bytes;
    p.ranks = shape.layout.ranks, p.obliges = obliges, p.interrupted = interrupted;
    if (shape.layout.ranks < 1 || shape.layout.ranks > 1 << 16 || shape.card_count < 1 ||
        shape.card_count > MAX_CARDS || shape.layout.slots < 1 || shape.layout.pool_cards < 1)
        return PyErr_Format(PyExc_ValueError, "a layout of 1 to %d ranks on 1 to %d cards", 1 << 16, MAX_CARDS);
    if (decided(&h, &p, &shape, &a)) result = told(&p);
    clean(&p, &shape, (int)PyList_GET_SIZE(a.plans));
    PyMem_Free((void *)p.host);
    while (h.views) PyBuffer_Release(&h.view[--h.views]);
    PyMem_Free(h.view);
    return result;
}

/* accesses() -> (loads, stores) of each opcode, as bits of its operands */
static PyObject *all_accesses(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(none)) {
    PyObject *rows = PyList_New(OP_END);
    for (int op = 0; rows && op < OP_END; op++) {
        PyObject *row = Py_BuildValue("(ii)", (int)pass_accesses[op].loads, (int)pass_accesses[op].stores);
        if (!row) Py_CLEAR(rows);
        else PyList_SET_ITEM(rows, op, row);
    }
    return rows;
}

static PyMethodDef methods[] = {
    {"accesses", all_accesses, METH_NOARGS,
     "accesses() -> [(loads, stores)] by opcode: bits of operands, in the order of OPERAND_FIELDS."},
    {"run", run_pass, METH_VARARGS,
     "run(layout, hosts, strips, plans, plan_of, epochs, without, obliges): (verdict, reason, rule, detail, "
     "instructions,\n"
     "at, by, card, line). Raises ValueError for records that could not be executed."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "faults.prove._pass",
    .m_doc = "The happens-before pass.",
    .m_methods = methods,
};

static const constant constants[] = {
    CONSTANT(ORDER),
    CONSTANT(LANDED),
    CONSTANT(OLDER_WRITE),
    CONSTANT(FRESH),
    CONSTANT(RESIDUE),
    CONSTANT(STALE_ALLOCATE),
    CONSTANT(FALSE_SHARING),
    CONSTANT(PAYLOAD),
    CONSTANT(FENCE_SCOPE),
    CONSTANT(LOCAL),
    CONSTANT(EXIT),
    CONSTANT(REUSE),
    CONSTANT(BARRIER),
    CONSTANT(CONTRACT),
    CONSTANT(FOLD_ORDER),
    CONSTANT(DEADLOCK),
    CONSTANT(PLAIN),
    CONSTANT(UNWRITTEN),
    CONSTANT(UNORDERED_WRITE),
    CONSTANT(OVERWRITES),
    CONSTANT(NEVER_FLUSHED),
    CONSTANT(NEVER_FENCED),
    CONSTANT(NOT_TOLD),
    CONSTANT(NEVER_DROPPED),
    CONSTANT(DROPPED_EARLY),
    CONSTANT(DROP_UNFENCED),
    CONSTANT(UNREAD),
    CONSTANT(UNLANDED),
    CONSTANT(NOT_DONE),
    CONSTANT(UNMATCHED),
    CONSTANT(MISFOLDED),
    CONSTANT(NO_REASON),
    CONSTANT(SIGNALS_UNORDERED),
    CONSTANT(SIGNALS_FALL),
    CONSTANT(TOO_MANY_FENCES),
    CONSTANT(TOO_MANY_DRAINS),
    CONSTANT(COMPUTES),
    CONSTANT(PROVED),
    CONSTANT(VIOLATED),
    CONSTANT(UNDECIDED),
    CONSTANT(OPAQUE),
    CONSTANT(CHECKSUM),
    CONSTANT(PRODUCT),
    CONSTANT(FOLD_WORDS),
    CONSTANT(PRODUCT_WORDS),
};

PyMODINIT_FUNC PyInit__pass(void) {
    PyObject *module = make_module(&definition);
    if (module && add_constants(module, constants, sizeof constants / sizeof *constants) < 0) Py_CLEAR(module);
    return module;
}
