/* The watcher: brings what the checker knows up to date at each step and move, and asks the rules about it. */
#include "check.h"

#include <string.h>

static check_thread *thread_of(const program_step *step) { return &room_now()->thread[step->thread]; }
static uint32_t time_of(const program_step *step) { return (uint32_t)step->number; }

/* Return which words of a line a step touches, as bits. */
static unsigned words_of(const program_step *step, int64_t number) {
    const int64_t begin = step->offset - number * PROGRAM_LINE, end = begin + step->nbytes;
    if (begin <= 0 && end >= PROGRAM_LINE) return ALL_WORDS;
    const int first = begin > 0 ? (int)(begin / WORD) : 0;
    const int last = end < PROGRAM_LINE ? (int)((end + WORD - 1) / WORD) : LINE_WORDS;
    return (0xFFu << first & 0xFFu) & (0xFFu >> (LINE_WORDS - last));
}

static bool inside(const program_step *step) { return step->pool < PROGRAM_POOLS && step->nbytes > 0; }

#define EACH_LINE(step, touched)                                                                                 \
    for (check_touch touched = {(step), NULL, (step)->offset / PROGRAM_LINE, false, false};                      \
         touched.number * PROGRAM_LINE < (step)->offset + (step)->nbytes && !room_now()->full &&                 \
         (touched.line = line_at((step)->pool, touched.number)) &&                                               \
         (touched.coherent = program_coherent_anywhere && program_coherent((step)->pool, touched.number), true); \
         touched.number++)

/* --- fences -------------------------------------------------------------------------------------------------------------- */

static void lands(check_write *w, const program_step *by) {
    if (!w->landed) w->landed = time_of(by), w->fence = (uint16_t)by->site;
}

/* Whether a flush is one of a write; one before a device's event was seen is not. */
static bool is_posted(const check_write *w, uint32_t flush) {
    return w->state & WRITE_NT || (w->state & WRITE_FLUSHED && flushed_at(w) <= flush);
}

/* Land what a line's flush has posted, or what was stored past the cache by then. */
static void land_line(const program_step *step, const check_line *line, uint32_t flush) {
    EACH_WRITE(line, w)
    if (w->host == step->host && w->time <= flush && is_posted(w, flush) && !is_open(step, w)) lands(w, step);
}

static void land_flushed(check_thread *thread, const program_step *step) {
    check_room *room = room_now();
    while (thread->flushes) {
        check_node *node = room_at(thread->flushes);
        for (uint32_t k = 0; k < node->lines; k++) land_line(step, line_at(node->pool, node->line + k), node->time + k);
        const uint32_t next = node->next;
        node->next = room->free_node, room->free_node = thread->flushes, thread->flushes = next;
    }
}

static void fence_stores(const program_step *step) {
    check_thread *thread = thread_of(step);
    land_flushed(thread, step);
    thread->stores_fenced = time_of(step), thread->store_fence = (uint16_t)step->site;
}

static void fence_all(const program_step *step) {
    fence_stores(step);
    thread_of(step)->all_fenced = thread_of(step)->loads_fenced = time_of(step);
    thread_of(step)->full_fence = (uint16_t)step->site;
}

static void await_fence(const program_step *step, int64_t line, uint16_t lines) {
    check_room *room = room_now();
    check_thread *thread = thread_of(step);
    const uint32_t at = room->free_node ? room->free_node : room_take(sizeof(check_node));
    if (!at) return;
    check_node *node = room_at(at);
    if (at == room->free_node) room->free_node = node->next;
    *node = (check_node){thread->flushes, (uint32_t)line, time_of(step), lines, step->pool, 0};
    thread->flushes = at;
}

static void on_fence(const program_step *step) {
    if (step->what == FENCE_STORES) fence_stores(step);
    else if (step->what == FENCE_LOADS) thread_of(step)->loads_fenced = time_of(step);
    else fence_all(step);
}

/* --- loads and stores ---------------------------------------------------------------------------------------------------- */

/* Note what a thread loads, for rule_stuck: it may load that again and again. */
static void note_load(const program_step *step, int64_t number, unsigned words) {
    check_thread *thread = thread_of(step);
    const int64_t before = number - step->offset / PROGRAM_LINE;
    uint32_t k = 0;
    if (before >= 2 * LOADS && step->offset + step->nbytes > (number + LOADS + 1) * PROGRAM_LINE) {
        thread->load_count++; /* of many lines, the last ones take these places */
        return;
    }
    while (k < LOADS &&
           (thread->load[k].line != number || thread->load[k].pool != step->pool || !thread->load[k].words))
        k++;
    if (k == LOADS) k = thread->load_count++ % LOADS, thread->load[k].words = 0, thread->load[k].times = 0;
    thread->load[k].line = number, thread->load[k].pool = step->pool;
    thread->load[k].words |= (uint8_t)words, thread->load[k].site = (uint16_t)step->site;
    thread->load[k].time = time_of(step), thread->load[k].times++;
}

/* Judge a load. Words of the line's last write need no look, all at once, where this host made that write or has seen it before. */
static void load_line(const check_touch *t, unsigned words, const uint8_t *line_bytes) {
    check_copy *copy = line_copy(t->line, t->step->host);
    if (!copy->host) return;
    const check_write *last = line_last(t->line);
    const bool holds_last = last && holds_one(copy->cached) && line_write(t->line, copy->cached & 15) == last;
    if (!holds_last || !has_seen(t->step, last)) rule_load_words(t, words, copy, line_bytes, last);
    copy->loaded = 1;
}

static void on_load(const program_step *step, const uint8_t *bytes) {
    if (step->locked) fence_all(step);
    if (!inside(step)) return;
    EACH_LINE(step, t) {
        const unsigned words = words_of(step, t.number);
        if (t.coherent) {
            rule_hear(&t, words);
            continue;
        }
        note_load(step, t.number, words);
        load_line(&t, words, bytes ? bytes + (t.number * PROGRAM_LINE - step->offset) : NULL);
    }
}

static bool is_same(const uint8_t *before, const uint8_t *after, size_t nbytes) {
    if (nbytes == WORD) return memcmp(before, after, WORD) == 0; /* no call */
    return memcmp(before, after, nbytes) == 0;
}

/* Whether a step covers every byte of a line. */
static bool is_whole(const check_touch *t) {
    const int64_t begin = t->step->offset - t->number * PROGRAM_LINE;
    return begin <= 0 && begin + t->step->nbytes >= PROGRAM_LINE;
}

/* Return those words whose bytes a store leaves as they were. */
static unsigned kept(const check_touch *t, unsigned words, const uint8_t *before, const uint8_t *after) {
    const int64_t begin = t->step->offset - t->number * PROGRAM_LINE, end = begin + t->step->nbytes;
    unsigned same = 0;
    for (int word = 0; word < LINE_WORDS; word++) {
        if (!(words >> word & 1)) continue;
        const int64_t low = word * WORD > begin ? word * WORD : begin,
                      high = (word + 1) * WORD < end ? (word + 1) * WORD : end;
        same |= (unsigned)is_same(before + low, after + low, (size_t)(high - low)) << word;
    }
    return same;
}

/* Return which words a store changes: one that stores the newest bytes once more makes no new version. */
static unsigned changed(const check_touch *t, unsigned words, const uint8_t *before, const uint8_t *after) {
    const unsigned same = before ? kept(t, words, before, after) : 0;
    if (!same) return words;
    const check_copy *copy = line_copy(t->line, t->step->host);
    const check_write *last = line_last(t->line);
    for (int word = 0; word < LINE_WORDS; word++) {
        if (!(same >> word & 1)) continue;
        const check_write *newest = last && last->words >> word & 1 ? last : line_newest(t->line, word, -1);
        if (newest == line_write(t->line, held(copy->cached, word))) words &= ~(1u << word);
    }
    return words;
}

/* Whether the copy holds a write as a whole. Otherwise another store has overwritten part of it since, and words that joined it
 * now would seem older than that store. */
static bool holds_all(const check_copy *copy, uint32_t number, unsigned words) {
    for (int word = 0; word < LINE_WORDS; word++)
        if (words >> word & 1 && held(copy->cached, word) != number) return false;
    return true;
}

static check_write *line_slot(check_line *line, uint32_t number) {
    for (; number > CHUNK_WRITES; number -= CHUNK_WRITES) line = room_at(line->more);
    return &line->write[number - 1];
}

/* Return the number of the copy that is open on a line, of a device's thread; 0: there is none. */
static uint32_t open_number(check_line *line, int thread) {
    for (uint32_t number = 1; number <= WRITES; number++) {
        const check_write *w = line_write(line, number);
        if (w && w->state & WRITE_OPEN && w->thread == thread) return number;
    }
    return 0;
}

static bool by_device(const program_step *step) { return thread_of(step)->copy.asked && !thread_of(step)->copy.seen; }

/* Note a store as its host's last one; return whether it goes on where the one before it was. Else others may have learned of
 * those before it. */
static bool note_store(const check_touch *t) {
    check_host *h = &room_now()->host[t->step->host];
    const uint32_t line = (uint32_t)t->number + 1;
    if (h->stored.line == line && h->stored.pool == t->step->pool && h->stored.thread == t->step->thread) return true;
    h->stored.line = line, h->stored.pool = t->step->pool, h->stored.thread = (uint8_t)t->step->thread;
    h->stored.since = time_of(t->step);
    return false;
}

static bool is_of_row(const check_touch *t, const check_write *w) {
    return w->host == t->step->host && w->time >= room_now()->host[w->host].stored.since;
}

/* Return which bytes of these words a store writes. */
static uint64_t bytes_in(const check_touch *t, unsigned words) {
    const check_write whole = {.words = (uint8_t)words};
    return touched_bytes(t) & written(&whole);
}

/* Whether a version can be of further bytes. */
static bool joins(const check_write *w, unsigned words, uint64_t bytes) {
    check_write both = {0};
    return write_bytes(&both, w->words | words, written(w) | bytes);
}

/* Return the number of the write that a store belongs to: a device's, which was noted when it was asked for, or the thread's
 * last one, if the store goes on beside it at the same place of the program, else a new one. */
static uint32_t write_number(const check_touch *t, const check_copy *copy, unsigned words, unsigned state) {
    const uint32_t open = t->by_device ? open_number(t->line, t->step->thread) : 0;
    if (open) return open;
    const bool goes_on = note_store(t);
    for (int word = 0; goes_on && words != ALL_WORDS && !(state & (WRITE_NT | WRITE_LOCKED)) && word < LINE_WORDS;
         word++) {
        const uint32_t number = held(copy->cached, word);
        check_write *w = line_write(t->line, number);
        if (w && w->site == t->step->site && !w->state && is_of_row(t, w) && holds_all(copy, number, w->words) &&
            !(written(w) & bytes_in(t, words)) && joins(w, words, bytes_in(t, words)))
            return number;
    }
    return line_add(t->line);
}

static void add_write(const check_touch *t, unsigned words, unsigned state, const uint8_t *after) {
    check_copy *copy = line_copy(t->line, t->step->host);
    const uint32_t number = write_number(t, copy, words, state);
    check_write *w = line_slot(t->line, number);
    if (!(w->state & WRITE_OPEN)) w->time = time_of(t->step), w->site = (uint16_t)t->step->site;
    w->host = t->step->host & 15U, w->thread = (uint8_t)t->step->thread;
    write_bytes(w, w->words | words, written(w) | bytes_in(t, words)), w->state |= (uint8_t)state;
    uint32_t cached = copy->cached;
    for (int word = 0; word < LINE_WORDS; word++) {
        if (!(words >> word & 1)) continue;
        if (!(state & WRITE_NT)) cached = with_held(cached, word, number);
        const bool whole = word * WORD >= t->step->offset - t->number * PROGRAM_LINE &&
                           (word + 1) * WORD <= t->step->offset + t->step->nbytes - t->number * PROGRAM_LINE;
        w->hash[word] = after && (whole || !(state & WRITE_NT)) ? hash_of(after + word * WORD) : 0;
    }
    copy->cached = cached;
}

static void store_beside(const check_touch *t, unsigned words) {
    if (room_now()->open_copies || !line_alone(t->line, t->step->host)) rule_store_beside(t, words);
}

/* Note a store of a whole line that changes each of its words, as most of a copy are; false where it is none. */
static bool store_whole(const check_touch *t, const uint8_t *before, const uint8_t *after) {
    uint64_t hashes = 0;
    if (!is_whole(t) || (t->line->write[0].state | t->line->write[1].state) & WRITE_NT || t->line->more) return false;
    for (int word = 0; word < LINE_WORDS; word++) {
        if (is_same(before + word * WORD, after + word * WORD, WORD)) return false;
        hashes |= (uint64_t)hash_of(after + word * WORD) << 8 * word;
    }
    store_beside(t, ALL_WORDS);
    const uint32_t number = line_add(t->line);
    check_write *w = line_slot(t->line, number);
    w->time = time_of(t->step), w->site = (uint16_t)t->step->site;
    w->host = t->step->host & 15U, w->thread = (uint8_t)t->step->thread, w->words = ALL_WORDS;
    memcpy(w->hash, &hashes, sizeof w->hash);
    note_store(t);
    line_copy(t->line, t->step->host)->cached = all_held(number);
    return true;
}

/* A cached store waits for its thread's own non-temporal stores to the line. */
static void land_own_nt(const check_touch *t) {
    const check_line *line = t->line;
    if (!line->more && !((line->write[0].state | line->write[1].state) & WRITE_NT)) return;
    EACH_WRITE(t->line, w)
    if (w->state & WRITE_NT && w->host == t->step->host && w->thread == t->step->thread) lands(w, t->step);
}

/* Every host sees a store to a coherent line as soon as it is made; one past the cache, when it lands. */
static void arrives_at_once(const check_touch *t) {
    check_copy *copy = line_copy(t->line, t->step->host);
    for (int word = 0; word < LINE_WORDS; word++) {
        const uint32_t number = held(copy->cached, word);
        if (!number) continue;
        t->line->pool = with_held(t->line->pool, word, number);
        check_write *w = line_slot(t->line, number);
        w->state |= WRITE_FLUSHED | WRITE_LEFT;
        lands(w, t->step);
    }
    copy->cached = 0;
}

static void on_store(const program_step *step, const uint8_t *before, const uint8_t *after) {
    if (step->locked) fence_all(step);
    if (!inside(step)) return;
    const unsigned state = step->kind == STEP_NT_STORE ? WRITE_NT | WRITE_FLUSHED
                           : step->kind == STEP_RMW    ? WRITE_LOCKED
                                                       : 0;
    const bool device = by_device(step), plain = step->kind == STEP_STORE && before && !device;
    bool stores = false;
    EACH_LINE(step, t) {
        const int64_t shift = t.number * PROGRAM_LINE - step->offset;
        if (plain && !t.coherent && store_whole(&t, before + shift, after + shift)) {
            stores = true;
            continue;
        }
        unsigned words = words_of(step, t.number);
        if (step->kind == STEP_RMW && t.coherent) rule_hear(&t, words);
        else if (step->kind == STEP_RMW) load_line(&t, words, NULL);
        else if (!t.coherent) words = changed(&t, words, before ? before + shift : NULL, after ? after + shift : NULL);
        if (!words) continue;
        stores = true;
        if (!(state & WRITE_NT)) land_own_nt(&t);
        t.by_device = device;
        if (!t.coherent && !device) store_beside(&t, words);
        add_write(&t, words, state, after ? after + shift : NULL);
        if (t.coherent) arrives_at_once(&t);
        if (step->kind == STEP_NT_STORE) await_fence(step, t.number, 1);
    }
    for (int k = 0; stores && k < LOADS; k++) thread_of(step)->load[k].times = 0;
}

/* Whether a drop may happen before the load that last told its thread of a write: only lfence, mfence and locked instructions keep a
 * clflushopt behind older loads. */
static bool may_overtake(const program_step *step) {
    return step->what == FLUSH_DROP && thread_of(step)->told > thread_of(step)->loads_fenced;
}

static bool told_last(const program_step *step, const check_write *w) {
    return known(step->host, w) && room_now()->host[step->host].told[w->host] == thread_of(step)->told;
}

static void flush_write(const program_step *step, check_write *w) {
    if (w->host != step->host || w->state & (WRITE_FLUSHED | WRITE_NT) || is_open(step, w)) return;
    w->state |= WRITE_FLUSHED, w->flush = (uint16_t)step->site;
    for (int byte = 0; byte < 3; byte++) w->flushed[byte] = (uint8_t)(step->number >> 8 * byte);
    if (step->what == FLUSH_DROP_ORDERED) lands(w, step);
}

static void flush_line(const check_touch *t, bool was_dirty) {
    const program_step *step = t->step;
    if (was_dirty && !line_alone(t->line, step->host)) rule_flush_beside(t);
    check_copy *copy = line_copy(t->line, step->host);
    const bool drops = step->what != FLUSH_KEEP && copy->host, may = may_overtake(step);
    bool overtakes = false;
    if (drops) complete_drop(t->line, copy);
    EACH_WRITE(t->line, w) {
        flush_write(step, w);
        if (drops && known_landed(step->host, w)) w->dropping |= (uint16_t)(1u << step->host);
        overtakes = overtakes || (may && told_last(step, w));
    }
    if (!drops) return;
    if (overtakes) t->line->overtakes = copy->host;
    else if (t->line->overtakes == copy->host) t->line->overtakes = 0;
    copy->dropped = (uint32_t)step->number, copy->loaded = 0, copy->drop_thread = (uint8_t)step->thread;
    copy->drop_site = (uint16_t)step->site;
}

static void on_flush(const program_step *step, bool was_dirty, bool was_present) {
    (void)was_present;
    if (step->pool >= PROGRAM_POOLS) {
        rule_outside(step);
        return;
    }
    program_step one = *step; /* the flush of each line is a step */
    uint16_t flushed = 0;
    EACH_LINE(step, t) {
        if (t.coherent) continue; /* such a line comes alone */
        one.number = step->number + flushed++, one.offset = t.number * PROGRAM_LINE, one.nbytes = PROGRAM_LINE;
        t.step = &one;
        flush_line(&t, was_dirty);
    }
    if (flushed) await_fence(step, step->offset / PROGRAM_LINE, flushed);
}

/* --- moves --------------------------------------------------------------------------------------------------------------- */

static void leaves(check_line *line, const check_copy *copy, int host) {
    for (int word = 0; word < (holds_one(copy->cached) ? 1 : LINE_WORDS); word++) {
        check_write *w = line_write(line, held(copy->cached, word));
        if (w && w->host == host) w->state |= WRITE_LEFT;
    }
}

static void arrives_nt(check_line *line, const program_move *move) {
    for (uint32_t number = 1; number <= WRITES; number++) {
        const check_write *w = line_write(line, number);
        if (!w || !(w->state & WRITE_NT) || w->time != (uint32_t)move->store || w->host != move->host) continue;
        for (int word = move->first / WORD; word * WORD < move->first + move->count; word++)
            line->pool = with_held(line->pool, word, number);
    }
}

static bool in_pool(const check_line *line, uint32_t number) {
    for (int word = 0; word < LINE_WORDS; word++)
        if (held(line->pool, word) == number) return true;
    return false;
}

/* What had not arrived when its host crashed never was, as long as nobody finds it: then it had arrived after all. */
static void lose(check_line *line, int host) {
    for (uint32_t number = 1; number <= WRITES; number++) {
        check_write *w = line_write(line, number);
        if (!w || w->host != host || w->landed || w->witnessed) continue;
        if (in_pool(line, number)) w->landed = room_now()->host[host].crashed;
        else w->state |= WRITE_LOST;
    }
}

static void crashes(const program_step *step) {
    check_room *room = room_now();
    room->host[step->host].crashed = time_of(step), room->host[step->host].born = false;
    uint32_t at = room->last_line;
    for (int pool = room->last_pool; at;) {
        check_line *line = (check_line *)(void *)program_watcher_line(pool, at - 1);
        lose(line, step->host);
        at = line->next_line, pool = line->next_pool;
    }
}

static void is_left(check_line *line, const program_move *move) {
    for (uint32_t number = 1; number <= WRITES; number++) {
        check_write *w = line_write(line, number);
        if (!w || w->host != move->host || !(w->state & WRITE_LOST) || w->time > move->store) continue;
        w->state &= (uint8_t)~WRITE_LOST, w->landed = room_now()->host[move->host].crashed;
        w->dropping |= line_dropped_since(line, w->landed);
        for (int word = 0; word < LINE_WORDS; word++) {
            const check_write *got = line_write(line, held(line->pool, word));
            if (w->words >> word & 1 && (!got || got->time < w->time)) line->pool = with_held(line->pool, word, number);
        }
    }
}

static inline void moves(int kind, int host, const program_move *move, check_line *line) {
    check_copy *copy = line_copy(line, host);
    switch (kind) {
    case MOVE_FETCH: copy->cached = line->pool, copy->present = 1; break;
    case MOVE_FETCH_POSTED: copy->cached = copy->posted, copy->present = 1; break;
    case MOVE_POST: leaves(line, copy, host), copy->posted = copy->cached; break;
    case MOVE_WRITE_BACK: leaves(line, copy, host), line->pool = copy->cached; break;
    case MOVE_LAND: line->pool = copy->posted, copy->posted = 0; break;
    case MOVE_DROP: copy->cached = 0, copy->present = 0; break;
    case MOVE_NT: arrives_nt(line, move); break;
    case MOVE_LEFT: is_left(line, move); break;
    default: break; /* MOVE_LOST, MOVE_FAILED: the bytes never were in the pool, or did not come */
    }
}

static void on_move(const program_move *move) {
    if (move->pool >= PROGRAM_POOLS) return;
    const int kind = move->kind, host = move->host, pool = move->pool;
    check_line *line = (check_line *)(void *)program_watcher_line(pool, move->line);
    const check_room *room = room_now();
    for (int64_t number = move->line, end = number + move->lines; number < end && !room->full; number++, line++)
        moves(kind, host, move, line_noted(line, pool, number));
}

/* --- copies by devices --------------------------------------------------------------------------------------------------- */

/* A device may write from now on, so its host claims to do so. */
static void copy_begins(const program_step *step) {
    check_thread *device = &room_now()->thread[step->other];
    device->copy.asked = time_of(step), device->copy.seen = 0, device->copy.pool = step->pool;
    device->copy.offset = step->offset, device->copy.nbytes = inside(step) ? step->nbytes : 0;
    room_now()->open_copies++;
    if (!inside(step)) return;
    EACH_LINE(step, t) {
        if (t.coherent) continue;
        const unsigned words = words_of(step, t.number);
        store_beside(&t, words);
        check_write *w = line_slot(t.line, line_add(t.line));
        *w = (check_write){
            .time = time_of(step),
            .site = (uint16_t)step->site,
            .host = step->host & 15U,
            .state = WRITE_OPEN,
            .thread = (uint8_t)step->other,
        };
        write_bytes(w, words, touched_bytes(&t));
    }
}

/* The event of a device's copy is seen: the write is its host's like any other, and the fences of the thread that has seen it await
 * what it has posted. */
static void copy_seen(const program_step *step) {
    check_thread *device = &room_now()->thread[step->other];
    const program_step its = {.pool = device->copy.pool, .offset = device->copy.offset, .nbytes = device->copy.nbytes};
    device->copy.seen = time_of(step);
    room_now()->open_copies--;
    EACH_LINE(&its, t) {
        const uint32_t number = open_number(t.line, step->other);
        if (number) line_slot(t.line, number)->state &= (uint8_t)~WRITE_OPEN;
    }
    while (device->flushes) {
        check_node *node = room_at(device->flushes);
        const uint32_t next = node->next;
        node->next = thread_of(step)->flushes, thread_of(step)->flushes = device->flushes, device->flushes = next;
    }
}

/* --- everything else ----------------------------------------------------------------------------------------------------- */

static void expect_stale(const program_step *step) {
    check_host *h = &room_now()->host[step->host];
    for (uint32_t k = 0; k < h->expected; k++)
        if (h->expect[k].pool == step->pool && h->expect[k].begin <= step->offset &&
            h->expect[k].end >= step->offset + step->nbytes)
            return;
    const uint32_t at = h->expected < EXPECTED ? h->expected++ : (uint32_t)(step->number % EXPECTED);
    h->expect[at].pool = step->pool;
    h->expect[at].begin = step->offset, h->expect[at].end = step->offset + step->nbytes;
}

static void on_other(const program_step *step) {
    check_thread *thread = thread_of(step);
    switch (step->kind) {
    case STEP_PROCESS_START: know_start(step->host, step->stage); /* fall through */
    case STEP_THREAD_START:
        *thread = (check_thread){.host = step->host, .alive = true, .process = step->process, .copy = thread->copy};
        break;
    case STEP_THREAD_END: thread->alive = false; break;
    case STEP_PROCESS_END:
        if (!step->what) know_end(step->host, step->stage, time_of(step));
        for (int k = 0; k < PROGRAM_THREADS; k++)
            if (room_now()->thread[k].process == step->process) room_now()->thread[k].alive = false;
        break;
    case STEP_HOST_CRASH: crashes(step); break;
    case STEP_DEVICE_COPY: copy_begins(step); break;
    case STEP_DEVICE_SEEN: copy_seen(step); break;
    case STEP_EXPECT_STALE:
        if (inside(step)) expect_stale(step);
        break;
    case STEP_MSYNC:
        if (!inside(step)) break;
        EACH_LINE(step, t) rule_msync(&t);
        break;
    default: break;
    }
}

static void on_stuck(void) {
    check_room *room = room_now();
    room->stuck = true;
    for (int k = 0; k < PROGRAM_THREADS; k++)
        for (int load = 0; room->thread[k].alive && load < LOADS; load++) rule_stuck(k, load);
    if (room->full) rule_out_of_room();
    rule_tell_all();
}

/* A run that was given up is not judged for dirty lines, as it has not come to its last flushes. */
static void on_end(void) {
    const check_room *room = room_now();
    program_watched(room->lines, (uint64_t)room->chunks * sizeof(check_line));
    if (room->stuck) return;
    uint32_t at = room->last_line;
    for (int pool = room->last_pool; at;) {
        check_line *line = (check_line *)(void *)program_watcher_line(pool, at - 1);
        rule_dirty_at_exit(pool, at - 1, line);
        at = line->next_line, pool = line->next_pool;
    }
    if (room->full) rule_out_of_room();
    rule_tell_all();
}

const program_watcher checker = {
    .load = on_load,
    .store = on_store,
    .flush = on_flush,
    .fence = on_fence,
    .other = on_other,
    .move = on_move,
    .end = on_end,
    .stuck = on_stuck,
};
