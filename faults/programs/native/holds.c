/* What must hold, as programs say it in cxl.h: assertions, invariants of what a pool itself holds, and operations that must be
 * linearizable, which the driver judges (faults/programs/histories.py). */
#define _GNU_SOURCE
#include "crash.h"
#include "finding.h"
#include "self.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int (*functions[PROGRAM_INVARIANTS])(const void *); /* those that this process has declared */

/* This thread, if the program runs under `cxlemu exec`; it may not have opened a pool yet. */
static program_self *taking_part(void) { return process_join() ? self_here() : NULL; }

static program_site site_of(const char *file, const char *function, unsigned line) {
    char name[PROGRAM_PATH];
    snprintf(name, sizeof name, "%s\n%s", file, function);
    return program_site_in(name, line);
}

void program_misused(const char *format, ...) {
    va_list rest;
    va_start(rest, format);
    vfprintf(stderr, format, rest);
    va_end(rest);
    exit(2);
}

/* --- assertions ------------------------------------------------------------------------------------------------------ */

PROGRAM_EXPORT void cxlemu_cxl_fails(const char *condition, const char *file, const char *function, unsigned line) {
    program_self *me = taking_part();
    if (!me) {
        fprintf(stderr, "%s:%u: cxl_assert(%s) does not hold in %s\n", file, line, condition, function);
        abort();
    }
    const bool inside = me->inside; /* in the function of an invariant */
    if (!inside && !step_begin(me)) return;
    program_finding found = {.kind = ASSERTION, .rule = MANIFEST, .times = 1, .number = here.area->steps};
    found.host = (uint8_t)here.host, found.other_host = found.pool = UINT8_MAX;
    found.thread = (uint16_t)me->thread, found.other_thread = UINT16_MAX;
    found.sites[AT_ACCESS] = site_of(file, function, line), found.numbers[AT_ACCESS] = here.area->steps;
    program_report(&found);
    if (!inside) step_end(me);
}

/* --- invariants ------------------------------------------------------------------------------------------------------ */

static held_bytes *hold(int invariant) {
    program_area *a = here.area;
    const program_invariant *its = &a->invariants[invariant];
    if (a->held_count == PROGRAM_HELD) {
        a->unheld++;
        return NULL;
    }
    held_bytes *held = &a->held[a->held_count++];
    held->number = a->steps, held->invariant = (int16_t)invariant;
    memcpy(held->bytes + its->offset % PROGRAM_LINE, image_of(0, (int)its->pool)->cache.pool + its->offset,
           (size_t)its->nbytes);
    return held;
}

/* Lay the bytes of a line that arrives now over those that the pool has held so far. */
static void lay_over(held_bytes *held, const program_invariant *its, int64_t line, const uint8_t *bytes) {
    const int64_t begin = its->offset, end = its->offset + its->nbytes;
    for (int64_t at = line * PROGRAM_LINE; at < (line + 1) * PROGRAM_LINE; at++)
        if (at >= begin && at < end) held->bytes[begin % PROGRAM_LINE + at - begin] = bytes[at % PROGRAM_LINE];
}

static void arrives(int host, int thread, int pool, int64_t line, program_site site, const uint8_t *bytes) {
    for (uint32_t k = 0; k < here.area->invariant_count; k++) {
        const program_invariant *its = &here.area->invariants[k];
        if (its->pool != pool || line < its->offset / PROGRAM_LINE ||
            line > (its->offset + its->nbytes - 1) / PROGRAM_LINE)
            continue;
        held_bytes *held = hold((int)k);
        if (!held) continue;
        held->line = line, held->host = (uint8_t)host, held->thread = (uint16_t)thread, held->site = site;
        if (bytes) lay_over(held, its, line, bytes);
    }
}

void holds_moved(const program_move *m) {
    if (m->kind != MOVE_LAND && m->kind != MOVE_WRITE_BACK && m->kind != MOVE_NT && m->kind != MOVE_LEFT) return;
    const card_cache *c = &image_of(m->host, m->pool)->cache;
    const uint8_t *from = m->kind == MOVE_LAND ? c->posted : m->kind == MOVE_WRITE_BACK ? c->data : NULL;
    const program_site site = m->cause == BY_PROGRAM ? here.area->doing[m->thread].site : 0;
    arrives(m->host, m->thread, m->pool, m->line, site, from ? from + m->line * PROGRAM_LINE : NULL);
}

void holds_stored(const program_step *s) {
    for (int64_t line = s->offset / PROGRAM_LINE; line * PROGRAM_LINE < s->offset + s->nbytes; line++)
        if (is_coherent(s->pool, line)) arrives(s->host, s->thread, s->pool, line, s->site, NULL);
}

static void broken(const held_bytes *held) {
    const program_invariant *its = &here.area->invariants[held->invariant];
    program_finding found = {.kind = INVARIANT, .rule = MANIFEST, .times = 1, .number = held->number};
    found.host = (uint8_t)here.host, found.other_host = held->host, found.pool = (uint8_t)its->pool;
    found.thread = held->thread, found.other_thread = held->thread;
    const int64_t line = held->line * PROGRAM_LINE, end = its->offset + its->nbytes;
    found.offset = line > its->offset ? line : its->offset; /* what the invariant has of the line */
    found.nbytes = (line + PROGRAM_LINE < end ? line + PROGRAM_LINE : end) - found.offset;
    memcpy(found.seen, held->bytes + its->offset % PROGRAM_LINE + (found.offset - its->offset), (size_t)found.nbytes);
    found.sites[AT_ACCESS] = its->site, found.sites[AT_ARRIVES] = held->site;
    found.numbers[AT_ARRIVES] = held->number;
    program_report(&found);
}

void holds_examine(void) {
    program_area *a = here.area;
    uint32_t kept = 0;
    for (uint32_t k = 0; k < a->held_count; k++) {
        const held_bytes *held = &a->held[k];
        if (!functions[held->invariant]) {
            if (kept != k) a->held[kept] = *held;
            kept++;
        } else if (!functions[held->invariant](held->bytes + a->invariants[held->invariant].offset % PROGRAM_LINE))
            broken(held);
    }
    a->held_count = kept;
}

/* Return the number of an invariant that some process may have declared already; -1 where there are too many. */
static int number_of(program_invariant its) {
    program_area *a = here.area;
    for (uint32_t k = 0; k < a->invariant_count; k++)
        if (memcmp(&a->invariants[k], &its, sizeof its) == 0) return (int)k;
    if (a->invariant_count == PROGRAM_INVARIANTS) return -1;
    a->invariants[a->invariant_count] = its;
    return (int)a->invariant_count++;
}

PROGRAM_EXPORT void cxlemu_cxl_invariant(const void *at, size_t nbytes, int (*holds)(const void *), const char *file,
                                         const char *function, unsigned line) {
    program_self *me = taking_part();
    if (!me) return;
    pool_range r = {0};
    if (!nbytes || nbytes > HELD_BYTES - PROGRAM_LINE || !range_in_pool(at, nbytes, &r) || (size_t)r.nbytes != nbytes)
        program_misused("%s:%u: cxl_invariant takes 1 to %d bytes of one pool that is mapped\n", file, line,
                        HELD_BYTES - PROGRAM_LINE);
    if (!step_begin(me)) return;
    const int number = number_of((program_invariant){r.pool, r.offset, r.nbytes, site_of(file, function, line), 0});
    if (number >= 0) {
        functions[number] = holds;
        step_other(me, STEP_INVARIANT, -1, &r, NULL);
        image_decide((mover){here.host, (uint16_t)me->thread, BY_PROGRAM}, range_lines(&r));
        held_bytes *held = hold(number);
        if (held) held->line = r.offset / PROGRAM_LINE, held->host = (uint8_t)here.host, held->site = 0;
        if (held) held->thread = (uint16_t)me->thread;
    }
    step_end(me);
    if (number < 0) program_misused("%s:%u: more than %d invariants\n", file, line, PROGRAM_INVARIANTS);
}

/* --- operations ------------------------------------------------------------------------------------------------------ */

PROGRAM_EXPORT void cxlemu_cxl_linearizable(int kinds) {
    program_self *me = taking_part();
    if (!me || !step_begin(me)) return;
    here.area->kinds_asked |= (uint32_t)kinds;
    step_end(me);
}

PROGRAM_EXPORT void cxlemu_cxl_op_begin(int operation, uint64_t key, uint64_t value, const char *file,
                                        const char *function, unsigned line) {
    enum { BEGINS = 1, LAST = 8 /* CXL_OP_REMOVE */ };
    program_self *me = taking_part();
    if (!me) return;
    if (operation < 1 || operation > LAST)
        program_misused("%s:%u: cxl_op_begin: no operation is %d\n", file, line, operation);
    if (here.area->operation_open[me->thread])
        program_misused("%s:%u: cxl_op_begin: this thread has not ended its last operation (cxl_op_end)\n", file, line);
    if (!step_of_operation(me, BEGINS)) return;
    program_area *a = here.area;
    const uint32_t at = a->operation_count++;
    if (at < PROGRAM_OPERATIONS)
        a->operations[at] = (program_operation){
            .begin = a->steps,
            .key = key,
            .value = value,
            .site = site_of(file, function, line),
            .thread = (uint16_t)me->thread,
            .host = (uint8_t)here.host,
            .operation = (uint8_t)operation,
        };
    a->operation_open[me->thread] = at + 1;
    step_end(me);
}

PROGRAM_EXPORT void cxlemu_cxl_op_end(uint64_t result) {
    enum { ENDS = 2 };
    program_self *me = taking_part();
    if (!me) return;
    if (!here.area->operation_open[me->thread])
        program_misused("cxl_op_end: this thread has begun no operation (cxl_op_begin)\n");
    if (!step_of_operation(me, ENDS)) return;
    program_area *a = here.area;
    const uint32_t at = a->operation_open[me->thread] - 1;
    if (at < PROGRAM_OPERATIONS) a->operations[at].end = a->steps, a->operations[at].result = result;
    a->operation_open[me->thread] = 0, a->operations_ended[here.host]++;
    if (crash_now) crash_operation_ended(here.host);
    step_end(me);
}
