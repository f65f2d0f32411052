/* Versions that stores make: which bytes are new, and whether a store goes on with its thread's last version. */
#include "check.h"

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

/* Whether a write can take a later one's time: no other version has any of its bytes since, and none between the two is of
 * its words, as a copy's word that holds that one would seem to be without the write. */
static bool can_be_later(const check_line *line, const check_write *w, const check_write *to) {
    EACH_WRITE(line, other) {
        if (other == w || other == to || other->time <= w->time) continue;
        if (written(other) & written(w) || (other->time < to->time && other->words & w->words)) return false;
    }
    return true;
}

/* Make one version of two that stand beside each other, of the stores in a row that this one goes on with, so that a full line
 * has to forget none. */
static void unite(const check_touch *t, check_copy *copy) {
    for (uint32_t former = 1; former <= WRITES; former++)
        for (uint32_t later = 1; later <= WRITES; later++) {
            check_write *w = line_write(t->line, former), *to = line_write(t->line, later);
            if (w->time >= to->time || w->state || to->state || !is_of_row(t, w) || !is_of_row(t, to) ||
                written(w) & written(to) || !can_be_later(t->line, w, to) || !joins(to, w->words, written(w)))
                continue;
            for (int word = 0; word < LINE_WORDS; word++) {
                if (w->words & ~to->words & 1u << word) to->hash[word] = w->hash[word];
                if (held(copy->cached, word) == former) copy->cached = with_held(copy->cached, word, later);
            }
            write_bytes(to, to->words | w->words, written(to) | written(w));
            memset(w, 0, sizeof *w);
            return;
        }
}

/* Return the number of the write that a store belongs to: a device's, which was noted when it was asked for, or the thread's
 * last one, if the store goes on beside it at the same place of the program, else a new one. */
static uint32_t write_number(const check_touch *t, check_copy *copy, unsigned words, unsigned state) {
    const uint32_t open = t->by_device ? copy_open_number(t->line, t->step->thread) : 0;
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
    if (goes_on && line_is_full(t->line)) unite(t, copy);
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

void store_beside(const check_touch *t, unsigned words) {
    if (room_now()->open_copies || !line_alone(t->line, t->step->host)) rule_store_beside(t, words);
}

/* Note a store of a whole line that changes each of its words, as most of a copy are; false where it is none. */
static bool store_whole(const check_touch *t, const uint8_t *before, const uint8_t *after) {
    if (!is_whole(t) || line_has_nt(t->line)) return false;
    for (int word = 0; word < LINE_WORDS; word++)
        if (is_same(before + word * WORD, after + word * WORD, WORD)) return false;
    store_beside(t, ALL_WORDS);
    const uint32_t number = line_add(t->line);
    check_write *w = line_slot(t->line, number);
    w->time = time_of(t->step), w->site = (uint16_t)t->step->site;
    w->host = t->step->host & 15U, w->thread = (uint8_t)t->step->thread, w->words = ALL_WORDS;
    for (int word = 0; word < LINE_WORDS; word++) w->hash[word] = hash_of(after + word * WORD);
    note_store(t);
    line_copy(t->line, t->step->host)->cached = all_held(number);
    return true;
}

/* A cached store waits for its thread's own non-temporal stores to the line. */
static void land_own_nt(const check_touch *t) {
    if (!line_has_nt(t->line)) return;
    EACH_WRITE(t->line, w)
    if (w->state & WRITE_NT && w->host == t->step->host && w->thread == t->step->thread) check_lands(w, t->step);
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
        check_lands(w, t->step);
    }
    copy->cached = 0;
}

void store_noted(const program_step *step, const uint8_t *before, const uint8_t *after) {
    if (step->locked) check_fence_all(step);
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
        else if (step->kind == STEP_RMW) check_load_line(&t, words, NULL);
        else if (!t.coherent) words = changed(&t, words, before ? before + shift : NULL, after ? after + shift : NULL);
        if (!words) continue;
        stores = true;
        if (!(state & WRITE_NT)) land_own_nt(&t);
        t.by_device = device;
        if (!t.coherent && !device) store_beside(&t, words);
        add_write(&t, words, state, after ? after + shift : NULL);
        if (t.coherent) arrives_at_once(&t);
        if (step->kind == STEP_NT_STORE) check_await_fence(step, t.number, 1);
    }
    for (int k = 0; stores && k < LOADS; k++) thread_of(step)->load[k].times = 0;
}
