/* Keeps a thread's flushes and non-temporal stores until its fence. */
#include "self.h"

#include <stdlib.h>
#include <string.h>

static void grow(void **items, int64_t count, int64_t *room, size_t size) {
    if (count < *room) return;
    *room = *room ? 2 * *room : 64;
    *items = realloc(*items, (size_t)*room * size);
    if (!*items) abort();
}

/* A line that is on the list is not added again, unless one that ends alike was added since: a loop without a full fence flushes it
 * for ever. */
void list_add(line_list *list, pool_lines lines) {
    int64_t line = lines.first;
    if (list->count == 0) {
        grow((void **)&list->items, 0, &list->room, sizeof *list->items);
        list->items[list->count++] = lines;
        for (; line < lines.last; line++) list->at[(uint64_t)line % LIST_PLACES] = 0;
    }
    for (; line < lines.last; line++) {
        int64_t *at = &list->at[(uint64_t)line % LIST_PLACES];
        const pool_lines *its = *at < list->count ? &list->items[*at] : NULL;
        if (its && its->pool == lines.pool && its->first <= line && line < its->last) {
            line = its->last - 1; /* the whole run is here */
            continue;
        }
        pool_lines *last = list->count ? &list->items[list->count - 1] : NULL;
        if (last && last->pool == lines.pool && last->last == line) {
            last->last++;
        } else {
            grow((void **)&list->items, list->count, &list->room, sizeof *list->items);
            list->items[list->count++] = (pool_lines){lines.pool, line, line + 1};
        }
        *at = list->count - 1;
    }
}

/* --- where turns are chosen ------------------------------------------------------------------------------------------------ */

static bool turns_are_chosen(void) { return here.area->options.every || here.area->options.script_length; }

static bool past_add(program_self *me, pool_range r, const uint8_t *bytes, uint64_t number) {
    program_area *a = here.area;
    const pool_lines lines = range_lines(&r);
    if (!turns_are_chosen() || me->nt_count) return false;
    if (a->past_count + (lines.last - lines.first) > PAST_STORES) {
        a->past_left_out++;
        return false;
    }
    for (int64_t at = 0, nbytes; at < r.nbytes; at += nbytes) {
        past_store *its = &a->past[a->past_count++];
        nbytes = LINE_BYTES - (r.offset + at) % LINE_BYTES;
        if (nbytes > r.nbytes - at) nbytes = r.nbytes - at;
        *its = (past_store){number, r.offset + at, (uint16_t)me->thread, (uint8_t)r.pool, (uint8_t)nbytes, {0}};
        memcpy(its->bytes, bytes + at, (size_t)nbytes);
    }
    return me->nt_shared = true;
}

static void past_land_at(mover by, uint32_t at) {
    program_area *a = here.area;
    const past_store its = a->past[at];
    memmove(a->past + at, a->past + at + 1, (--a->past_count - at) * sizeof *a->past);
    image_land_nt(by, its.pool, its.offset, its.bytes, its.nbytes, its.number);
}

bool past_land(int thread, int pool, int64_t line) {
    const program_area *a = here.area;
    for (uint32_t k = 0; k < a->past_count; k++) {
        const past_store *its = &a->past[k];
        if (its->thread != thread || its->pool != pool || its->offset / LINE_BYTES != line) continue;
        past_land_at((mover){a->threads[thread].host, its->thread, BY_NATURE}, k);
        return true;
    }
    return false;
}

int64_t past_pay(void) {
    const program_area *a = here.area;
    const int64_t count = a->past_count;
    while (a->past_count) past_land_at((mover){a->threads[a->past->thread].host, a->past->thread, BY_NATURE}, 0);
    return count;
}

void past_forget(int host) {
    program_area *a = here.area;
    uint32_t kept = 0;
    for (uint32_t k = 0; k < a->past_count; k++)
        if (a->threads[a->past[k].thread].host != host) a->past[kept++] = a->past[k];
    a->past_count = kept;
}

static int64_t past_land_lines(const program_self *me, mover by, pool_lines lines) {
    const program_area *a = here.area;
    int64_t landed = 0;
    for (uint32_t k = 0; k < a->past_count;) {
        const past_store *its = &a->past[k];
        const int64_t line = its->offset / LINE_BYTES;
        if (its->thread != me->thread || its->pool != lines.pool || line < lines.first || line >= lines.last) k++;
        else past_land_at(by, k), landed++;
    }
    return landed;
}

/* --- elsewhere ------------------------------------------------------------------------------------------------------------- */

void posted_add(program_self *me, pool_range range, const uint8_t *bytes, uint64_t number) {
    if (past_add(me, range, bytes, number)) return;
    grow((void **)&me->nt, me->nt_count, &me->nt_room, sizeof *me->nt);
    nt_store *store = &me->nt[me->nt_count++];
    *store = (nt_store){range.pool, range.offset, range.nbytes, number, malloc((size_t)range.nbytes)};
    if (!store->bytes) abort();
    memcpy(store->bytes, bytes, (size_t)range.nbytes);
}

/* Land the non-temporal stores that touch any of these lines, each as a whole: hardly any has more than one line. */
int64_t posted_land(program_self *me, mover by, pool_lines lines) {
    int64_t kept = 0, landed = me->nt_shared ? past_land_lines(me, by, lines) : 0;
    for (int64_t k = 0; k < me->nt_count; k++) {
        const nt_store *store = &me->nt[k];
        const int64_t first = store->offset / LINE_BYTES, last = (store->offset + store->nbytes - 1) / LINE_BYTES;
        if (store->pool != lines.pool || last < lines.first || first >= lines.last) {
            me->nt[kept++] = *store;
            continue;
        }
        image_land_nt(by, store->pool, store->offset, store->bytes, store->nbytes, store->number);
        landed += last - first + 1;
        free(store->bytes);
    }
    me->nt_count = kept;
    return landed;
}

static bool posted_land_all(program_self *me, mover by) {
    int64_t landed = 0;
    for (int pool = 0; posts_past(me) && pool < here.area->options.pools; pool++)
        landed += posted_land(me, by, (pool_lines){pool, 0, INT64_MAX});
    me->nt_shared = false;
    return landed;
}

bool posted_fence(program_self *me, mover by, enum fence_kind kind) {
    if (kind == FENCE_LOADS) return false;
    const bool full = kind != FENCE_STORES;
    bool lands = posted_land_all(me, by);
    for (int64_t k = 0; k < me->flushed.count; k++) {
        const pool_lines its = me->flushed.items[k];
        lands = image_complete(by, its, !full) || lands;
        if (!full) list_add(&me->lingering, its);
    }
    me->flushed.count = 0;
    if (!full) return lands;
    for (int64_t k = 0; k < me->lingering.count; k++) image_drop_lingering(by, me->lingering.items[k], false);
    me->lingering.count = 0;
    return lands;
}

void posted_free(program_self *me) {
    for (int64_t k = 0; k < me->nt_count; k++) free(me->nt[k].bytes);
    free(me->nt), free(me->flushed.items), free(me->lingering.items);
}
