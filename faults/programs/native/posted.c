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

void posted_add(program_self *me, pool_range range, const uint8_t *bytes, uint64_t number) {
    grow((void **)&me->nt, me->nt_count, &me->nt_room, sizeof *me->nt);
    nt_store *store = &me->nt[me->nt_count++];
    *store = (nt_store){range.pool, range.offset, range.nbytes, number, malloc((size_t)range.nbytes)};
    if (!store->bytes) abort();
    memcpy(store->bytes, bytes, (size_t)range.nbytes);
}

/* Land the non-temporal stores that touch any of these lines, each as a whole: hardly any has more than one line. */
int64_t posted_land(program_self *me, mover by, pool_lines lines) {
    int64_t kept = 0, landed = 0;
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
    const bool lands = me->nt_count > 0;
    for (int pool = 0; me->nt_count && pool < here.area->options.pools; pool++)
        posted_land(me, by, (pool_lines){pool, 0, INT64_MAX});
    return lands;
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
