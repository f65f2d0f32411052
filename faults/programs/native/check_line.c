/* Versions of words: which store each word of the pool, of each host's cache and of its write-back comes from. */
#include "check.h"

#include <string.h>

enum { CHUNKS_USUAL = 2 };

uint32_t room_take(size_t nbytes) {
    check_room *room = room_now();
    const uint32_t units = (uint32_t)((nbytes + UNIT - 1) / UNIT);
    if (!room->used)
        room->used = (uint32_t)((sizeof *room + WATCHER_LINE_BYTES) / WATCHER_LINE_BYTES * (WATCHER_LINE_BYTES / UNIT));
    if ((int64_t)(room->used + units) * UNIT > WATCHER_ROOM_BYTES) {
        room->full = true;
        return 0;
    }
    const uint32_t at = room->used;
    room->used += units;
    return at;
}

void line_touched(int pool, int64_t number) {
    check_line *line = (check_line *)(void *)program_watcher_line(pool, number);
    check_room *room = room_now();
    line->touched = 1, line->next_line = room->last_line, line->next_pool = room->last_pool;
    room->lines++, room->chunks++;
    room->last_line = (uint32_t)number + 1, room->last_pool = (uint8_t)pool;
}

/* Return where a new chunk lies, all zeros; 0 where there is no room for one. */
static uint32_t new_chunk(void) {
    check_room *room = room_now();
    const uint32_t again = room->free_chunk, at = again ? again : room_take(sizeof(check_line));
    check_line *chunk = room_at(at);
    if (again) room->free_chunk = chunk->more, chunk->more = 0;
    room->chunks += at != 0;
    return at;
}

/* Return the chunk after this one, which it may make; NULL where there is none, or no room for one. */
static check_line *next_chunk(check_line *chunk, bool make) {
    if (!chunk->more && make) chunk->more = new_chunk();
    return chunk->more ? room_at(chunk->more) : NULL;
}

check_copy *line_new_copy(check_line *line, int host) {
    static check_copy none;
    for (check_line *chunk = line; chunk; chunk = next_chunk(chunk, true))
        for (int k = 0; k < CHUNK_COPIES; k++) {
            if (chunk->copy[k].host == host + 1) return &chunk->copy[k];
            if (chunk->copy[k].host) continue;
            chunk->copy[k].host = (unsigned)(host + 1) & 63U;
            return &chunk->copy[k];
        }
    return memset(&none, 0, sizeof none);
}

uint16_t line_dropped_since(check_line *line, uint32_t time) {
    uint16_t hosts = 0;
    for (check_line *chunk = line; chunk; chunk = next_chunk(chunk, false))
        for (int k = 0; k < CHUNK_COPIES; k++)
            if (chunk->copy[k].host && chunk->copy[k].dropped > time)
                hosts |= (uint16_t)(1u << (chunk->copy[k].host - 1));
    return hosts;
}

check_write *line_newest(check_line *line, int word, int not_of) {
    check_write *newest = NULL;
    EACH_WRITE(line, w)
    if (w->words >> word & 1 && w->host != not_of && (!newest || w->time > newest->time)) newest = w;
    return newest;
}

check_write *line_holds(check_line *line, check_write *got, uint64_t bytes) {
    if (!got || written(got) & bytes) return got;
    check_write *newest = NULL;
    EACH_WRITE(line, w)
    if (written(w) & bytes && w->time <= got->time && (!newest || w->time > newest->time)) newest = w;
    return newest;
}

static bool holds(uint32_t words, uint32_t number) {
    const uint32_t others = words ^ all_held(number); /* 0 for each word that holds it */
    return (others - UINT32_C(0x11111111)) & ~others & UINT32_C(0x88888888);
}

/* Whether the pool or some copy holds a write. */
static bool is_held(check_line *line, uint32_t number) {
    if (holds(line->pool, number)) return true;
    for (check_line *chunk = line; chunk; chunk = next_chunk(chunk, false))
        for (int k = 0; k < CHUNK_COPIES; k++)
            if (chunk->copy[k].host && (holds(chunk->copy[k].cached, number) || holds(chunk->copy[k].posted, number)))
                return true;
    return false;
}

static void forget(uint32_t *words, uint32_t number) {
    for (int word = 0; word < LINE_WORDS; word++)
        if (held(*words, word) == number) *words = with_held(*words, word, 0);
}

static void forget_everywhere(check_line *line, uint32_t number) {
    forget(&line->pool, number);
    for (check_line *chunk = line; chunk; chunk = next_chunk(chunk, false))
        for (int k = 0; k < CHUNK_COPIES; k++)
            forget(&chunk->copy[k].cached, number), forget(&chunk->copy[k].posted, number);
}

/* Whether a write is the newest one of any of its bytes. */
static inline bool is_newest(const check_line *line, const check_write *w) {
    uint64_t bytes = written(w);
    EACH_WRITE(line, other)
    if (other->time > w->time) bytes &= ~written(other);
    return bytes != 0;
}

/* Whether no write is here, or one that no copy holds and that is nowhere the newest. */
static bool is_free(check_line *line, uint32_t number) {
    const check_write *w = line_slot(line, number);
    return !w->time || (!is_newest(line, w) && !is_held(line, number));
}

/* Whether a write can be forgotten: it is older than another one everywhere, and only caches of hosts that know of it hold it.
 * A load of it teaches its host nothing, and the bytes that the run began with stand for it, being older as well. */
static bool is_settled(check_line *line, uint32_t number) {
    const check_write *w = line_write(line, number);
    if (!w || is_newest(line, w)) return false;
    if (holds(line->pool, number)) return false;
    for (check_line *chunk = line; chunk; chunk = next_chunk(chunk, false))
        for (int k = 0; k < CHUNK_COPIES; k++) {
            const check_copy *copy = &chunk->copy[k];
            if (!copy->host) continue;
            if (holds(copy->posted, number) || (holds(copy->cached, number) && !known(copy->host - 1, w))) return false;
        }
    return true;
}

static uint32_t first_settled(check_line *line) {
    for (uint32_t number = 1; number <= WRITES; number++)
        if (is_settled(line, number)) return number;
    return 0;
}

bool line_is_full(check_line *line) {
    if (!line_write(line, WRITES)) return false;
    for (uint32_t number = 1; number <= WRITES; number++)
        if (is_free(line, number)) return false;
    return !first_settled(line);
}

/* Take the first of these: a free entry; from the second chunk on, one
 * that is settled; one of a new chunk; the oldest. */
static uint32_t add_to_any(check_line *line) {
    uint32_t number = 1, again = 0, when = UINT32_MAX;
    int chunks = 0;
    for (check_line *chunk = line; chunk && chunks < CHUNKS; chunk = next_chunk(chunk, chunks < CHUNKS)) {
        for (int k = 0; k < CHUNK_WRITES; k++, number++) {
            check_write *w = &chunk->write[k];
            if (is_free(line, number)) {
                memset(w, 0, sizeof *w);
                return number;
            }
            if (w->time < when) when = w->time, again = number;
        }
        const uint32_t settled = ++chunks >= CHUNKS_USUAL ? first_settled(line) : 0;
        if (!settled) continue;
        again = settled;
        break;
    }
    forget_everywhere(line, again);
    memset(line_write(line, again), 0, sizeof(check_write));
    return again;
}

/* Give up a line's second chunk, if all that it keeps can be taken again. */
static void shed(check_line *line) {
    check_room *room = room_now();
    check_line *chunk = room_at(line->more);
    if (chunk->more || chunk->copy[0].host) return;
    for (uint32_t number = CHUNK_WRITES + 1; number <= 2 * CHUNK_WRITES; number++)
        if (!is_free(line, number)) return;
    memset(chunk, 0, sizeof *chunk);
    chunk->more = room->free_chunk, room->free_chunk = line->more, line->more = 0, room->chunks--;
}

uint32_t line_add(check_line *line) {
    for (unsigned k = 0; k < CHUNK_WRITES; k++) { /* mostly, two writes of all the line take turns */
        check_write *w = &line->write[k];
        const check_write *other = &line->write[1 - k];
        const bool stored_anew = other->time > w->time && written(other) == UINT64_MAX && !(other->state & WRITE_LOST);
        if (w->time && (!stored_anew || is_held(line, k + 1))) continue;
        if (line->more) shed(line);
        memset(w, 0, sizeof *w);
        return k + 1;
    }
    return add_to_any(line);
}
