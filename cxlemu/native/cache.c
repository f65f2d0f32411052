#include "cache.h"
#include "copy.h"
#include "lines.h"

#include <stdatomic.h>
#include <string.h>

enum { BLOCK_LINES = 128 }; /* as many as stay in the first-level cache between two copies */
/* A window as large as this leaves no room for its lines in the second-level cache; and how many of them are fenced at once. */
enum { PAST_BYTES = 1 << 20, PAST_BLOCK_LINES = 4096 };

/* Let bytes change before states do, for the process that goes on after this one was killed. */
#define THEN() atomic_signal_fence(memory_order_release)

/* Bytes of the pool may change while they are read; the memory model forbids a program to use what it reads then. */
#if defined(__SANITIZE_THREAD__)
static void copy(uint8_t *to, const uint8_t *from, int64_t nbytes) {
    for (int64_t k = 0; k < nbytes; k++)
        __atomic_store_n(to + k, __atomic_load_n(from + k, __ATOMIC_RELAXED), __ATOMIC_RELAXED);
}
#else
static void copy(uint8_t *to, const uint8_t *from, int64_t nbytes) {
    if (nbytes == LINE_BYTES) memcpy(to, from, LINE_BYTES); /* in place: a call would take longer than the copy */
    else copy_bytes(to, from, nbytes);
}
#endif

static void copy_lines(uint8_t *to, const uint8_t *from, int64_t first, int64_t last) {
    copy(to + first * LINE_BYTES, from + first * LINE_BYTES, (last - first) * LINE_BYTES);
}

void cache_take_strided(uint8_t *into, strided from, int64_t at, int64_t nbytes) {
    for (int64_t done = 0, piece; done < nbytes; done += piece) {
        const int64_t within = (at + done) % from.block_bytes;
        piece = from.block_bytes - within < nbytes - done ? from.block_bytes - within : nbytes - done;
        copy(into + done, from.at + (at + done) / from.block_bytes * from.stride + within, piece);
    }
}

void cache_give_strided(strided into, int64_t at, const uint8_t *from, int64_t nbytes) {
    for (int64_t done = 0, piece; done < nbytes; done += piece) {
        const int64_t within = (at + done) % into.block_bytes;
        piece = into.block_bytes - within < nbytes - done ? into.block_bytes - within : nbytes - done;
        memcpy(into.at + (at + done) / into.block_bytes * into.stride + within, from + done, (size_t)piece);
    }
}

/* --- runs of lines in one state ------------------------------------------------------------------------------------ */

#define EIGHT(byte) ((byte) * UINT64_C(0x0101010101010101))

static uint64_t eight(const uint8_t *states) {
    uint64_t word;
    memcpy(&word, states, sizeof word);
    return word;
}

/* Return the end of the run of lines, from `at` on, whose bits in mask are those of value. */
static int64_t run_end(const uint8_t *state, int64_t at, int64_t last, uint8_t mask, uint8_t value) {
    for (; at + 64 <= last; at += 64) {
        uint64_t others = 0;
        for (int k = 0; k < 64; k += 8) others |= (eight(state + at + k) & EIGHT(mask)) ^ EIGHT(value);
        if (others) break;
    }
    while (at + 8 <= last && (eight(state + at) & EIGHT(mask)) == EIGHT(value)) at += 8;
    while (at < last && (state[at] & mask) == value) at++;
    return at;
}

/* Return the first line from `at` on with any bit of mask, or `last`. */
static int64_t find_set(const uint8_t *state, int64_t at, int64_t last, uint8_t mask) {
    return run_end(state, at, last, mask, 0);
}

/* Return the first line from `at` on without the bit. */
static int64_t find_clear(const uint8_t *state, int64_t at, int64_t last, uint8_t bit) {
    return run_end(state, at, last, bit, bit);
}

static void set_all(uint8_t *state, int64_t first, int64_t last, uint8_t value) {
    if (last - first == 1) state[first] = value;
    else memset(state + first, value, (size_t)(last - first));
}

/* --- steps ----------------------------------------------------------------------------------------------------------- */

/* Copy lines to the pool, unless it is out of reach. */
static void put_lines(card_cache *c, const uint8_t *from, int64_t first, int64_t last) {
    if (damage_armed(c->damage)) {
        if (damage_cut_off(c->damage, c->host, c->card) != DONE) return;
        damage_overwritten(c->damage, c->card, first, last);
    }
    copy_lines(c->pool, from, first, last);
}

enum status cache_check_load(const card_cache *c, int64_t first, int64_t last, int64_t *line) {
    if (!damage_armed(c->damage)) return DONE;
    bool reached = false;
    for (*line = first; *line < last; ++*line) {
        if (c->state[*line] & PRESENT || c->pending[*line]) continue; /* not from the pool */
        const enum status cut_off = reached ? DONE : damage_cut_off(c->damage, c->host, c->card);
        if (cut_off != DONE) return cut_off;
        reached = true;
        if (damage_poisoned(c->damage, c->card, *line)) return POISONED;
    }
    return DONE;
}

static void land_lines(card_cache *c, int64_t first, int64_t last) {
    for (int64_t at = first, end; (at = find_set(c->pending, at, last, 1)) < last; at = end) {
        end = find_clear(c->pending, at, last, 1);
        put_lines(c, c->posted, at, end);
        THEN();
        set_all(c->pending, at, end, 0);
    }
}

static void fetch_lines(card_cache *c, int64_t first, int64_t last) {
    for (int64_t at = first, end; (at = find_clear(c->state, at, last, PRESENT)) < last; at = end) {
        end = find_set(c->state, at, last, PRESENT);
        for (int64_t from = at, to; from < end; from = to) {
            const uint8_t held = c->pending[from];
            to = run_end(c->pending, from, end, 1, held);
            copy_lines(c->data, held ? c->posted : c->pool, from, to);
        }
        THEN();
        uint8_t *const state = c->state;
        for (int64_t k = at; k < end; k++) state[k] |= PRESENT;
    }
}

/* Windows of one line, as programs flush and fetch them, have no runs to look for; nor have those of a few. */
enum { FEW_LINES = 4 };

static void land_line(card_cache *c, int64_t line) {
    if (!c->pending[line]) return;
    put_lines(c, c->posted, line, line + 1);
    THEN();
    c->pending[line] = 0;
}

static void land(card_cache *c, int64_t first, int64_t last) {
    if (last - first > FEW_LINES) land_lines(c, first, last);
    else
        for (int64_t k = first; k < last; k++) land_line(c, k);
}

static void fetch(card_cache *c, int64_t first, int64_t last) {
    if (last - first != 1) {
        fetch_lines(c, first, last);
    } else if (!(c->state[first] & PRESENT)) {
        copy_lines(c->data, c->pending[first] ? c->posted : c->pool, first, last);
        THEN();
        c->state[first] |= PRESENT;
    }
}

static void post_line(card_cache *c, int64_t line) {
    if (!(c->state[line] & DIRTY)) return;
    land(c, line, line + 1);
    copy_lines(c->posted, c->data, line, line + 1);
    THEN();
    c->pending[line] = 1;
    c->state[line] &= PRESENT | FLUSHED;
}

/* Post the dirty lines with the bytes that they have now. A line has one pending write-back: an older one lands. */
static void post(card_cache *c, int64_t first, int64_t last) {
    for (int64_t at = first, end; (at = find_set(c->state, at, last, DIRTY)) < last; at = end) {
        end = find_clear(c->state, at, last, DIRTY);
        land(c, at, end);
        copy_lines(c->posted, c->data, at, end);
        THEN();
        memset(c->pending + at, 1, (size_t)(end - at));
        uint8_t *const state = c->state;
        for (int64_t k = at; k < end; k++) state[k] &= PRESENT | FLUSHED;
    }
}

void cache_store(card_cache *c, int64_t offset, strided from, int64_t nbytes) {
    if (nbytes == 0) return;
    const int64_t first = offset / LINE_BYTES, last = (offset + nbytes + LINE_BYTES - 1) / LINE_BYTES;
    if (offset % LINE_BYTES) fetch(c, first, first + 1);
    if ((offset + nbytes) % LINE_BYTES) fetch(c, last - 1, last);
    cache_take_strided(c->data + offset, from, 0, nbytes);
    THEN();
    memset(c->state + first, PRESENT | DIRTY, (size_t)(last - first));
}

void cache_store_through(card_cache *c, int64_t offset, strided from, int64_t nbytes, bool fenced) {
    const int64_t first = (offset + LINE_BYTES - 1) / LINE_BYTES, last = (offset + nbytes) / LINE_BYTES;
    if (first >= last) {
        cache_store(c, offset, from, nbytes);
        return;
    }
    const int64_t head = first * LINE_BYTES - offset, whole = (last - first) * LINE_BYTES;
    land(c, first, last);
    cache_take_strided((fenced ? c->pool : c->posted) + first * LINE_BYTES, from, head, whole);
    THEN();
    memset(c->pending + first, !fenced, (size_t)(last - first));
    memset(c->state + first, FLUSHED, (size_t)(last - first));
    uint8_t ends[LINE_BYTES];
    cache_take_strided(ends, from, 0, head);
    cache_store(c, offset, (strided){ends, LINE_BYTES, 0}, head);
    cache_take_strided(ends, from, head + whole, nbytes - head - whole);
    cache_store(c, last * LINE_BYTES, (strided){ends, LINE_BYTES, 0}, nbytes - head - whole);
}

/* Load whole lines that are all absent, with nothing pending: copy them to where lines are kept and to the reader at once. */
static void fetch_and_give(card_cache *c, int64_t first, int64_t last, uint8_t *into, bool past) {
    const int64_t begin = first * LINE_BYTES, nbytes = (last - first) * LINE_BYTES;
#if defined(__SANITIZE_THREAD__)
    copy(c->data + begin, c->pool + begin, nbytes);
    copy(into, c->data + begin, nbytes);
    (void)past;
#else
    copy_lines_twice(c->data + begin, into, c->pool + begin, nbytes, past);
#endif
    THEN();
    memset(c->state + first, PRESENT, (size_t)(last - first));
}

void cache_load(card_cache *c, int64_t offset, strided into, int64_t nbytes) {
    const bool past = nbytes >= PAST_BYTES;
    for (int64_t at = 0, piece; at < nbytes; at += piece) {
        const int64_t begin = offset + at, first = begin / LINE_BYTES, within = at % into.block_bytes;
        piece = (first + (past ? PAST_BLOCK_LINES : BLOCK_LINES)) * LINE_BYTES - begin;
        if (piece > nbytes - at) piece = nbytes - at;
        const int64_t last = (begin + piece + LINE_BYTES - 1) / LINE_BYTES;
        const bool whole = begin % LINE_BYTES == 0 && (begin + piece) % LINE_BYTES == 0;
        if (whole && within + piece <= into.block_bytes && run_end(c->state, first, last, 0xFF, 0) == last &&
            find_set(c->pending, first, last, 1) == last) {
            fetch_and_give(c, first, last, into.at + at / into.block_bytes * into.stride + within, past);
        } else {
            fetch(c, first, last);
            cache_give_strided(into, at, c->data + begin, piece);
        }
    }
}

void cache_touch(card_cache *c, int64_t first, int64_t last, bool dirty) {
    fetch(c, first, last);
    if (dirty) set_all(c->state, first, last, PRESENT | DIRTY);
}

void cache_flush(card_cache *c, int64_t first, int64_t last, bool keep) {
    if (last - first == 1) {
        post_line(c, first);
        if (!keep) c->state[first] |= (uint8_t)((c->state[first] & PRESENT) * FLUSHED);
        return;
    }
    post(c, first, last);
    if (keep) return;
    uint8_t *const state = c->state; /* a byte may alias anything: the loop is vectors only on a pointer of its own */
    for (int64_t k = first; k < last; k++) state[k] |= (uint8_t)((state[k] & PRESENT) * FLUSHED);
}

void cache_complete(card_cache *c, int64_t first, int64_t last) {
    uint8_t *const state = c->state;
    land(c, first, last);
    if (last - first == 1) state[first] = state[first] < FLUSHED ? state[first] : 0;
    else
        for (int64_t k = first; k < last; k++) state[k] = state[k] < FLUSHED ? state[k] : 0;
}

void cache_land(card_cache *c, int64_t first, int64_t last) { land(c, first, last); }

/* Put dirty lines into the pool at once: no host can tell that from posting a write-back that lands. */
void cache_invalidate(card_cache *c, int64_t first, int64_t last) {
    for (int64_t at = first, end; (at = find_set(c->state, at, last, DIRTY)) < last; at = end) {
        end = find_clear(c->state, at, last, DIRTY);
        put_lines(c, c->data, at, end);
        THEN();
        memset(c->pending + at, 0, (size_t)(end - at));
    }
    land(c, first, last);
    THEN();
    memset(c->state + first, 0, (size_t)(last - first));
}

static bool arrives(card_cache *c, int64_t line) {
    if (damage_cut_off(c->damage, c->host, c->card) != DONE) return false;
    damage_overwritten(c->damage, c->card, line, line + 1);
    return true;
}

/* Push the payload first, so that a reader of the word finds its payload. */
void cache_push_doorbell(card_cache *c, int64_t line) {
    const int64_t at = line * LINE_BYTES;
    uint64_t word;
    land(c, line, line + 1);
    if (!damage_armed(c->damage) || arrives(c, line)) {
        copy(c->pool + at + 8, c->data + at + 8, PAYLOAD_BYTES);
        memcpy(&word, c->data + at, sizeof word);
        __atomic_store_n((uint64_t *)(void *)(c->pool + at), word, __ATOMIC_RELEASE);
    }
    THEN();
    c->state[line] = PRESENT | FLUSHED;
}

/* Fetch the word first, and the payload after it. */
void cache_fetch_doorbell(card_cache *c, int64_t line) {
    const int64_t at = line * LINE_BYTES;
    cache_invalidate(c, line, line + 1);
    const uint64_t word = __atomic_load_n((const uint64_t *)(const void *)(c->pool + at), __ATOMIC_ACQUIRE);
    memcpy(c->data + at, &word, sizeof word);
    copy(c->data + at + 8, c->pool + at + 8, PAYLOAD_BYTES);
    THEN();
    c->state[line] = PRESENT;
}

void cache_land_nt(card_cache *c, int64_t offset, const uint8_t *bytes, int64_t nbytes) {
    if (nbytes) cache_invalidate(c, offset / LINE_BYTES, (offset + nbytes + LINE_BYTES - 1) / LINE_BYTES);
    if (damage_armed(c->damage)) { /* a line at either end that is overwritten in part stays poisoned */
        if (damage_cut_off(c->damage, c->host, c->card) != DONE) return;
        damage_overwritten(c->damage, c->card, (offset + LINE_BYTES - 1) / LINE_BYTES, (offset + nbytes) / LINE_BYTES);
    }
    copy(c->pool + offset, bytes, nbytes);
}

bool cache_move_line(card_cache *c, enum action action, int64_t k) {
    int64_t line;
    switch (action) {
    case EVICT: /* a dirty line goes to the pool at once, unless an older write-back of it is still pending */
        if (c->state[k] == 0 || (c->state[k] & DIRTY && c->pending[k])) return false;
        if (c->state[k] & DIRTY) put_lines(c, c->data, k, k + 1);
        THEN();
        c->state[k] = 0;
        return true;
    case PREFETCH:
        if (c->state[k] & PRESENT || cache_check_load(c, k, k + 1, &line) != DONE) return false;
        fetch(c, k, k + 1);
        return true;
    default:
        if (!c->pending[k]) return false;
        land(c, k, k + 1);
        return true;
    }
}

int64_t cache_move(card_cache *c, const adversary_move *move) {
    int64_t count = 0;
    for (int64_t k = move->lines.first; k < move->lines.last; k++)
        if (move->among[k - move->lines.first]) count += cache_move_line(c, move->action, k);
    return count;
}
