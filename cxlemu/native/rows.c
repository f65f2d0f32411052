/* Whether each record of some ranks obeys the rules of single records, which plan/rules/fields.py and references.py define. C only
 * says that all do: what is wrong with one of them, Python says. The tables by opcode are Python's, too. */
#include "modules.h"

#include <string.h>

enum { KNOWN = 1, TYPED = 2, SIZED = 4, RINGS = 8, LOOKS = 16, CARRIES = 32, COMPUTES = 64, TELLS = 128 };
enum names { NO_NAME, DOORBELL, GROUP, EVENT, KERNEL_NAME };
enum { OPERANDS = 5, KINDS = 3 };

/* A row of OPCODE_DTYPE. */
typedef struct {
    uint8_t is, names; /* bits of the first enum; what arg names */
    uint8_t kinds[OPERANDS]; /* a bit for each kind that an operand may have */
} opcode;

/* What is known of a rank. */
typedef struct {
    int64_t rank, rows, first_buffer, buffers, events;
} part;

typedef struct {
    const opcode *opcodes; /* 256 of them */
    const uint8_t *folds; /* by dtype and operation */
    const int64_t *item_bytes; /* by dtype */
    int64_t dtypes, redops;
    const int64_t *buffer_bytes;
    const region *regions;
    const group *groups;
    const int64_t *kernel_bytes; /* by operand and kernel; the last one is none */
    int64_t region_count, group_count, kernel_count;
    int64_t ranks, doorbells_per_rank, slots, rounds, published;
} tables;

static bool fits(int64_t at, int64_t nbytes, int64_t size) { return at >= 0 && nbytes <= size && at <= size - nbytes; }

static bool fields_right(const tables *t, const record *r, const opcode *o) {
    const bool typed = o->is & TYPED, divides = typed && r->flags & FLAG_DIVIDE;
    if (!typed && (r->dtype || r->redop || r->flags & (o->is & TELLS ? ~FLAG_PLACES : ~0))) return false;
    if (typed && (r->dtype >= t->dtypes || !r->redop || r->redop >= t->redops || r->flags & ~FLAG_DIVIDE ||
                  !t->folds[r->dtype * t->redops + r->redop] || (divides && r->arg < 1)))
        return false;
    if (o->names == NO_NAME && !divides && r->arg) return false;
    if (o->names != DOORBELL && o->names != GROUP && r->value) return false;
    if (o->is & SIZED ? r->nbytes < 0 : r->nbytes != 0) return false;
    if (typed && r->nbytes % t->item_bytes[r->dtype]) return false;
    return !(o->is & CARRIES) || r->nbytes <= (r->flags & FLAG_PLACES ? PLACES_AT : PAYLOAD_BYTES);
}

static bool operand_right(const tables *t, const part *its, const operand *o, int64_t need) {
    switch (o->kind) {
    case NOTHING: return !o->id && !o->offset && !o->seq;
    case BUFFER:
        return !o->seq && o->id < its->buffers && fits(o->offset, need, t->buffer_bytes[its->first_buffer + o->id]);
    default:
        return o->id < t->region_count && o->seq >= 0 && o->seq < t->rounds && !(t->regions[o->id].heap && o->seq) &&
               fits(o->offset, need, t->regions[o->id].nbytes);
    }
}

static bool name_right(const tables *t, const record *r, const opcode *o, const part *its) {
    int64_t earliest = 0;
    switch (o->names) {
    case DOORBELL:
        if (r->arg < 0 || r->arg >= t->published + t->ranks) return false;
        if (o->is & LOOKS && r->arg >= t->published) earliest = -t->slots;
        if (o->is & RINGS &&
            (r->arg >= t->published ? r->arg - t->published : r->arg / t->doorbells_per_rank) != its->rank)
            return false;
        break;
    case GROUP:
        if (r->arg < 0 || r->arg >= t->group_count) return false;
        if (t->groups[r->arg].first >= t->published) earliest = -t->slots;
        break;
    case EVENT: return r->arg >= 0 && r->arg < its->events;
    case KERNEL_NAME: return r->arg >= 0 && r->arg < t->kernel_count;
    default: return true;
    }
    return r->value >= earliest && r->value < t->rounds;
}

/* Return on how many ranges of cards an operand lies that is right. */
static int64_t ranges_of(const tables *t, const record *r, const operand *o) {
    if (o->kind != REGION || r->nbytes <= 0) return 0;
    const region *g = &t->regions[o->id];
    const int64_t first = g->start + o->offset;
    const int64_t granules = (first + r->nbytes - 1) / g->granularity_bytes - first / g->granularity_bytes + 1;
    return granules < g->cards ? granules : g->cards;
}

static bool row_right(const tables *t, const record *r, const part *its, int64_t *ranges) {
    const opcode *o = &t->opcodes[r->op];
    const operand *const operands[OPERANDS] = {&r->dst, &r->dst2, &r->a, &r->b, &r->c};
    if (!(o->is & KNOWN) || !fields_right(t, r, o) || !name_right(t, r, o, its)) return false;
    for (int k = 0; k < OPERANDS; k++) {
        const int64_t need = o->is & COMPUTES ? t->kernel_bytes[k * (t->kernel_count + 1) + r->arg] : r->nbytes;
        if (operands[k]->kind >= KINDS || !(o->kinds[k] >> operands[k]->kind & 1)) return false;
        if (!operand_right(t, its, operands[k], need)) return false;
        if (k == 0 && o->is & COMPUTES && need != r->nbytes) return false;
        *ranges += ranges_of(t, r, operands[k]);
    }
    return true;
}

enum { RECORDS, PARTS, OPCODES, FOLDS, ITEM_BYTES, BUFFER_BYTES, REGIONS, GROUPS, KERNEL_BYTES, NUMBERS, ARRAYS };

static bool fit(const Py_buffer *v, const tables *t, int64_t rows, int64_t parts) {
    int64_t count = 0;
    const part *const all = v[PARTS].buf;
    bool good = v[OPCODES].len == 256 * (Py_ssize_t)sizeof(opcode) && v[FOLDS].len == t->dtypes * t->redops;
    good = good && v[KERNEL_BYTES].len == OPERANDS * 8 * (t->kernel_count + 1) && t->doorbells_per_rank > 0;
    for (int64_t k = 0; good && k < parts; k++) {
        good = all[k].rows >= 0 && all[k].rows <= rows - count && all[k].buffers >= 0 && all[k].first_buffer >= 0 &&
               all[k].buffers <= v[BUFFER_BYTES].len / 8 - all[k].first_buffer;
        count += all[k].rows;
    }
    for (int64_t k = 0; good && k < t->region_count; k++) good = t->regions[k].granularity_bytes > 0;
    return good && count == rows;
}

/* rows_right(records, parts, opcodes, folds, item_bytes, buffer_bytes, regions, groups, kernel_bytes, numbers) -> on how many
 * ranges of cards the records lie; -1 where a rule is broken. numbers: ranks, doorbells per rank, slots, rounds, kernels. */
static PyObject *rows_right(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count) {
    Py_buffer v[ARRAYS];
    int held = 0;
    if (count != ARRAYS) return PyErr_Format(PyExc_TypeError, "rows_right takes %d arrays", ARRAYS);
    while (held < ARRAYS && PyObject_GetBuffer(args[held], &v[held], PyBUF_C_CONTIGUOUS) == 0) held++;
    int64_t ranges = 0;
    if (held == ARRAYS && v[NUMBERS].len == 5 * 8 && v[PARTS].len % (Py_ssize_t)sizeof(part) == 0 &&
        v[RECORDS].len % (Py_ssize_t)sizeof(record) == 0) {
        const int64_t *const n = v[NUMBERS].buf;
        const record *const records = v[RECORDS].buf;
        const part *const parts = v[PARTS].buf;
        const tables t = {
            .opcodes = v[OPCODES].buf,
            .folds = v[FOLDS].buf,
            .item_bytes = v[ITEM_BYTES].buf,
            .dtypes = v[ITEM_BYTES].len / 8,
            .redops = v[ITEM_BYTES].len ? v[FOLDS].len / (v[ITEM_BYTES].len / 8) : 0,
            .buffer_bytes = v[BUFFER_BYTES].buf,
            .regions = v[REGIONS].buf,
            .groups = v[GROUPS].buf,
            .kernel_bytes = v[KERNEL_BYTES].buf,
            .region_count = v[REGIONS].len / (Py_ssize_t)sizeof(region),
            .group_count = v[GROUPS].len / (Py_ssize_t)sizeof(group),
            .kernel_count = n[4],
            .ranks = n[0],
            .doorbells_per_rank = n[1],
            .slots = n[2],
            .rounds = n[3],
            .published = n[0] * n[1],
        };
        const int64_t rows = v[RECORDS].len / (Py_ssize_t)sizeof(record),
                      part_count = v[PARTS].len / (Py_ssize_t)sizeof(part);
        if (!fit(v, &t, rows, part_count))
            PyErr_SetString(PyExc_ValueError, "tables and records do not fit each other");
        for (int64_t k = 0, row = 0; !PyErr_Occurred() && ranges >= 0 && k < part_count; k++)
            for (int64_t end = row + parts[k].rows; row < end && ranges >= 0; row++)
                if (!row_right(&t, &records[row], &parts[k], &ranges)) ranges = -1;
    } else if (!PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, "an array has no whole rows");
    while (held > 0) PyBuffer_Release(&v[--held]);
    return PyErr_Occurred() ? NULL : PyLong_FromLongLong(ranges);
}

static PyMethodDef functions[] = {
    {"rows_right", FAST(rows_right), NULL},
    {NULL, NULL, 0, NULL},
};

int rows_add_to(PyObject *module) { return PyModule_AddFunctions(module, functions); }
