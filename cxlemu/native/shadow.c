#include "shadow.h"
#include "cache.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* Make room for one more item of `size` bytes in *items. Return false when there is no memory. */
static bool room(void *items, int64_t count, int64_t *capacity, size_t size) {
    void **array = items;
    if (count < *capacity) return true;
    const int64_t more = *capacity ? 2 * *capacity : 64;
    void *grown = realloc(*array, (size_t)more * size);
    if (!grown) return false;
    *array = grown, *capacity = more;
    return true;
}

static window lines_of(place at, int64_t nbytes) {
    const int64_t first = at.offset / LINE_BYTES;
    return (window){at.card, first, nbytes ? (at.offset + nbytes + LINE_BYTES - 1) / LINE_BYTES : first};
}

/* --- lines that a rank has flushed since its last fence ----------------------------------------------------------- */

static int by_place(const void *left, const void *right) {
    const window *a = left, *b = right;
    if (a->card != b->card) return a->card < b->card ? -1 : 1;
    return a->first < b->first ? -1 : a->first > b->first;
}

/* Join windows that touch, so that there are never more of them than lines. */
static void merge(shadow *s) {
    int64_t kept = 0;
    qsort(s->flushed, (size_t)s->flushed_count, sizeof *s->flushed, by_place);
    for (int64_t k = 1; k < s->flushed_count; k++) {
        window *before = &s->flushed[kept];
        const window next = s->flushed[k];
        if (next.card == before->card && next.first <= before->last) {
            if (next.last > before->last) before->last = next.last;
        } else {
            s->flushed[++kept] = next;
        }
    }
    s->flushed_count = kept + 1;
}

static bool note_flushed(shadow *s, window lines) {
    if (s->flushed_count == s->flushed_room) {
        if (s->flushed_count) merge(s);
        const bool crowded = s->flushed_count >= s->flushed_room / 2;
        if (crowded && !room(&s->flushed, s->flushed_room, &s->flushed_room, sizeof lines)) return false;
    }
    s->flushed[s->flushed_count++] = lines;
    return true;
}

/* --- the rank's own non-temporal stores --------------------------------------------------------------------------- */

static void land_store(shadow *s, place at, const uint8_t *bytes, int64_t nbytes) {
    cache_land_nt(&s->cards[at.card], at.offset, bytes, nbytes);
}

/* Land the stores' bytes that lie in a window, in program order; their other bytes stay posted. Add the lines to
 * *landed. Return false when there is no memory. */
static bool land_stores(shadow *s, window lines, int64_t *landed) {
    const int64_t begin = lines.first * LINE_BYTES, end = lines.last * LINE_BYTES;
    for (int64_t k = 0; k < s->store_count; k++) {
        posted_store *store = &s->stores[k];
        const int64_t store_end = store->at.offset + store->nbytes;
        const int64_t low = store->at.offset > begin ? store->at.offset : begin,
                      high = store_end < end ? store_end : end;
        if (store->at.card != lines.card || low >= high) continue;
        const place here = {lines.card, low};
        const int64_t before = low - store->at.offset, after = store_end - high;
        posted_store rest = {{lines.card, high}, after, NULL, NULL};
        if (before && after) {
            if (!room(&s->stores, s->store_count, &s->store_room, sizeof rest)) return false;
            store = &s->stores[k];
            if (!(rest.owned = malloc((size_t)after))) return false;
            rest.bytes = memcpy(rest.owned, store->bytes + (high - store->at.offset), (size_t)after);
        }
        land_store(s, here, store->bytes + before, high - low);
        const window touched = lines_of(here, high - low);
        *landed += touched.last - touched.first;
        if (before) {
            store->nbytes = before;
            if (!after) continue;
            memmove(store + 2, store + 1, (size_t)(s->store_count - k - 1) * sizeof *store);
            s->stores[++k] = rest;
            s->store_count++;
        } else if (after) {
            store->bytes += high - low, store->at.offset = high, store->nbytes = after;
        } else {
            free(store->owned);
            memmove(store, store + 1, (size_t)(s->store_count - k - 1) * sizeof *store);
            s->store_count--, k--;
        }
    }
    return true;
}

void shadow_discard(shadow *s) {
    for (int64_t k = 0; k < s->store_count; k++) free(s->stores[k].owned);
    free(s->stores), free(s->flushed);
    s->stores = NULL, s->flushed = NULL;
    s->store_count = s->store_room = s->flushed_count = s->flushed_room = 0;
}

/* --- around every operation -------------------------------------------------------------------------------------------- */

bool shadow_suffer(shadow *s, const adversary_move *move) {
    s->moved[move->action] += cache_move(&s->cards[move->lines.card], move);
    return move->action != LAND || land_stores(s, move->lines, &s->moved[LAND]);
}

static bool disturb(shadow *s) {
    enum action actions[ACTIONS];
    adversary_move move;
    bool ok = true;
    const int count = s->disturbed ? adversary_actions(&s->nature, actions) : 0;
    for (int k = 0; k < count; k++) {
        adversary_aim(&s->nature, actions[k], &move);
        ok = shadow_suffer(s, &move) && ok;
    }
    return ok;
}

static enum status enter(shadow *s, window lines, bool *ok) {
    if (!host_lock_take(s->lock, s->lock_s)) return LOCK_TIMEOUT;
    if (s->disturbed) adversary_touched(&s->nature, lines);
    *ok = disturb(s);
    return DONE;
}

static enum status leave(shadow *s, bool ok) {
    ok = disturb(s) && ok;
    host_lock_release(s->lock);
    return ok ? DONE : OUT_OF_MEMORY;
}

/* Return DONE where these lines can be loaded. Otherwise return why not, with the host's lock released. */
static enum status loadable(shadow *s, window lines) {
    int64_t line = lines.first;
    const enum status status = cache_check_load(&s->cards[lines.card], lines.first, lines.last, &line);
    if (status != DONE) {
        s->broken = (damaged_place){lines.card, line * LINE_BYTES};
        host_lock_release(s->lock);
    }
    return status;
}

/* --- operations ----------------------------------------------------------------------------------------------------------- */

/* Check the lines at either end of a store, which are loaded where it overwrites them in part. Return as `loadable`
 * does. */
static enum status ends_loadable(shadow *s, place at, int64_t nbytes) {
    const window lines = lines_of(at, nbytes);
    enum status status = DONE;
    if (nbytes && at.offset % LINE_BYTES) status = loadable(s, (window){at.card, lines.first, lines.first + 1});
    if (nbytes && status == DONE && (at.offset + nbytes) % LINE_BYTES)
        status = loadable(s, (window){at.card, lines.last - 1, lines.last});
    return status;
}

/* Store bytes in the host's cache, after this rank's own non-temporal stores to the same lines have landed. Return as
 * `loadable` does; *ok becomes false when there is no memory. */
static enum status store(shadow *s, place at, strided from, int64_t nbytes, enum follows next, bool *ok) {
    int64_t landed = 0;
    if (s->store_count && !land_stores(s, lines_of(at, nbytes), &landed)) {
        *ok = false;
        return DONE;
    }
    const enum status status = ends_loadable(s, at, nbytes);
    if (status != DONE) return status;
    card_cache *its = &s->cards[at.card];
    if (next == OTHER_NEXT) cache_store(its, at.offset, from, nbytes);
    else cache_store_through(its, at.offset, from, nbytes, next == FLUSH_AND_FENCE_NEXT);
    return DONE;
}

static void load(shadow *s, place at, strided into, int64_t nbytes) {
    cache_load(&s->cards[at.card], at.offset, into, nbytes);
    for (int64_t k = 0; k < s->store_count; k++) {
        const posted_store *own = &s->stores[k];
        const int64_t own_end = own->at.offset + own->nbytes, end = at.offset + nbytes;
        const int64_t low = own->at.offset > at.offset ? own->at.offset : at.offset,
                      high = own_end < end ? own_end : end;
        if (own->at.card == at.card && low < high)
            cache_give_strided(into, low - at.offset, own->bytes + (low - own->at.offset), high - low);
    }
}

enum status shadow_write(shadow *s, place at, strided from, int64_t nbytes, enum follows next) {
    bool ok;
    if (enter(s, lines_of(at, nbytes), &ok) != DONE) return LOCK_TIMEOUT;
    const bool step_by_step = s->disturbed || damage_armed(s->cards[at.card].damage);
    const enum status status = store(s, at, from, nbytes, step_by_step ? OTHER_NEXT : next, &ok);
    return status == DONE ? leave(s, ok) : status;
}

enum status shadow_write_nt(shadow *s, place at, strided from, int64_t nbytes) {
    bool ok;
    if (enter(s, lines_of(at, nbytes), &ok) != DONE) return LOCK_TIMEOUT;
    uint8_t *bytes = nbytes ? malloc((size_t)nbytes) : NULL;
    if (nbytes && bytes && room(&s->stores, s->store_count, &s->store_room, sizeof *s->stores)) {
        cache_take_strided(bytes, from, 0, nbytes);
        s->stores[s->store_count++] = (posted_store){at, nbytes, bytes, bytes};
    } else if (nbytes) {
        free(bytes);
        ok = false;
    }
    return leave(s, ok);
}

enum status shadow_read(shadow *s, place at, strided into, int64_t nbytes) {
    bool ok;
    if (enter(s, lines_of(at, nbytes), &ok) != DONE) return LOCK_TIMEOUT;
    const enum status status = loadable(s, lines_of(at, nbytes));
    if (status != DONE) return status;
    load(s, at, into, nbytes);
    return leave(s, ok);
}

enum status shadow_flush(shadow *s, place at, int64_t nbytes, bool keep) {
    bool ok;
    const window lines = lines_of(at, nbytes);
    if (enter(s, lines, &ok) != DONE) return LOCK_TIMEOUT;
    cache_flush(&s->cards[at.card], lines.first, lines.last, keep);
    ok = note_flushed(s, lines) && ok;
    return leave(s, ok);
}

enum status shadow_fence(shadow *s) {
    if (!host_lock_take(s->lock, s->lock_s)) return LOCK_TIMEOUT;
    bool ok = disturb(s);
    for (int64_t k = 0; k < s->store_count; k++) {
        land_store(s, s->stores[k].at, s->stores[k].bytes, s->stores[k].nbytes);
        free(s->stores[k].owned);
    }
    s->store_count = 0;
    for (int64_t k = 0; k < s->flushed_count; k++)
        cache_complete(&s->cards[s->flushed[k].card], s->flushed[k].first, s->flushed[k].last);
    s->flushed_count = 0;
    atomic_thread_fence(memory_order_seq_cst); /* bytes land before the next load */
    return leave(s, ok);
}

enum status shadow_invalidate(shadow *s, place at, int64_t nbytes) {
    bool ok;
    const window lines = lines_of(at, nbytes);
    if (enter(s, lines, &ok) != DONE) return LOCK_TIMEOUT;
    cache_invalidate(&s->cards[at.card], lines.first, lines.last);
    atomic_thread_fence(memory_order_seq_cst);
    return leave(s, ok);
}

enum status shadow_signal(shadow *s, place line, uint64_t word, const uint8_t *payload, int64_t nbytes) {
    bool ok;
    const window lines = lines_of(line, LINE_BYTES);
    if (enter(s, lines, &ok) != DONE) return LOCK_TIMEOUT;
    uint8_t bytes[LINE_BYTES];
    memcpy(bytes, &word, sizeof word);
    if (nbytes) memcpy(bytes + sizeof word, payload, (size_t)nbytes);
    const enum status status = store(s, line, (strided){bytes, LINE_BYTES, 0}, 8 + nbytes, OTHER_NEXT, &ok);
    if (status != DONE) return status;
    cache_push_doorbell(&s->cards[line.card], lines.first);
    ok = note_flushed(s, lines) && ok;
    return leave(s, ok);
}

/* The adversary does not move here: how often a rank polls depends on time, and its moves must not. */
enum status shadow_poll(shadow *s, place line, uint8_t into[LINE_BYTES]) {
    if (!host_lock_take(s->lock, s->lock_s)) return LOCK_TIMEOUT;
    if (damage_armed(s->cards[line.card].damage)) {
        const window lines = lines_of(line, LINE_BYTES);
        cache_invalidate(&s->cards[line.card], lines.first, lines.last);
        const enum status status = loadable(s, lines);
        if (status != DONE) return status;
    }
    cache_fetch_doorbell(&s->cards[line.card], line.offset / LINE_BYTES);
    load(s, line, (strided){into, LINE_BYTES, 0}, LINE_BYTES);
    host_lock_release(s->lock);
    return DONE;
}
