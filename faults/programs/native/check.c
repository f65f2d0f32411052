/* The watcher: brings what the checker knows up to date at each step and move, and asks the rules about it. */
#include "check.h"

/* --- fences -------------------------------------------------------------------------------------------------------------- */

void check_lands(check_write *w, const program_step *by) {
    if (!w->landed) w->landed = time_of(by), w->fence = (uint16_t)by->site;
}

/* Whether a flush is one of a write; one before a device's event was seen is not. */
static bool is_posted(const check_write *w, uint32_t flush) {
    return w->state & WRITE_NT || (w->state & WRITE_FLUSHED && flushed_at(w) <= flush);
}

/* Land what a line's flush has posted, or what was stored past the cache by then. */
static void land_line(const program_step *step, const check_line *line, uint32_t flush) {
    EACH_WRITE(line, w)
    if (!w->landed && w->host == step->host && w->time <= flush && is_posted(w, flush) && !is_open(step, w))
        check_lands(w, step);
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

void check_fence_all(const program_step *step) {
    fence_stores(step);
    thread_of(step)->all_fenced = thread_of(step)->loads_fenced = time_of(step);
    thread_of(step)->full_fence = (uint16_t)step->site;
}

void check_await_fence(const program_step *step, int64_t line, uint16_t lines) {
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
    else check_fence_all(step);
}

/* --- loads --------------------------------------------------------------------------------------------------------------- */

/* Note what a thread loads, for rule_stuck: it may load that again and again. Of many lines, none would stay noted. */
static void note_load(const program_step *step, int64_t number, unsigned words) {
    check_thread *thread = thread_of(step);
    uint32_t k = 0;
    if (step->nbytes > LOADS * PROGRAM_LINE) return;
    while (k < LOADS &&
           (thread->load[k].line != number || thread->load[k].pool != step->pool || !thread->load[k].words))
        k++;
    if (k == LOADS) k = thread->load_count++ % LOADS, thread->load[k].words = 0, thread->load[k].times = 0;
    thread->load[k].line = number, thread->load[k].pool = step->pool;
    thread->load[k].words |= (uint8_t)words, thread->load[k].site = (uint16_t)step->site;
    thread->load[k].time = time_of(step), thread->load[k].times++;
}

/* Words of the line's last write need no look, all at once, where this host made that write or has seen it before. */
static inline void load_line(const check_touch *t, unsigned words, const uint8_t *line_bytes) {
    check_copy *copy = line_copy(t->line, t->step->host);
    if (!copy->host) return;
    const check_write *got = holds_one(copy->cached) ? line_write(t->line, copy->cached & 15) : NULL;
    if (!got || !has_seen(t->step, got) || !line_is_last(t->line, got)) rule_load_words(t, words, copy, line_bytes);
    copy->loaded = 1;
}

void check_load_line(const check_touch *t, unsigned words, const uint8_t *line_bytes) {
    load_line(t, words, line_bytes);
}

static void on_load(const program_step *step, const uint8_t *bytes) {
    if (step->locked) check_fence_all(step);
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

/* --- flushes ------------------------------------------------------------------------------------------------------------- */

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
    if (step->what == FLUSH_DROP_ORDERED) check_lands(w, step);
}

static void flush_line(const check_touch *t, bool was_dirty, bool may) {
    const program_step *step = t->step;
    if (was_dirty && !line_alone(t->line, step->host)) rule_flush_beside(t);
    check_copy *copy = line_copy(t->line, step->host);
    const bool drops = step->what != FLUSH_KEEP && copy->host, dropped = drops && is_dropped(copy);
    const uint16_t bit = (uint16_t)(1u << step->host);
    bool overtakes = false;
    EACH_WRITE(t->line, w) {
        if (dropped) write_dropped(w, bit);
        if (w->landed && w->state & WRITE_FLUSHED && w->host == step->host) { /* one that was published before */
            if (drops) w->dropping |= bit;
            continue;
        }
        flush_write(step, w);
        if (drops && known_landed(step->host, w)) w->dropping |= bit;
        overtakes = overtakes || (may && told_last(step, w));
    }
    if (!drops) return;
    if (overtakes) t->line->overtakes = copy->host;
    else if (t->line->overtakes == copy->host) t->line->overtakes = 0;
    copy->dropped = (uint32_t)step->number, copy->loaded = 0, copy->drop_thread = (uint8_t)step->thread;
    copy->drop_site = (uint16_t)step->site;
}

static void on_flush(const program_step *step, uint64_t dirty, bool was_present) {
    (void)was_present;
    if (step->pool >= PROGRAM_POOLS) {
        rule_outside(step);
        return;
    }
    program_step one = *step; /* the flush of each line is a step */
    uint16_t flushed = 0;
    const bool may = may_overtake(step);
    EACH_LINE(step, t) {
        if (t.coherent) continue; /* such a line comes alone */
        one.number = step->number + flushed, one.offset = t.number * PROGRAM_LINE, one.nbytes = PROGRAM_LINE;
        t.step = &one;
        flush_line(&t, dirty >> flushed++ & 1, may);
    }
    if (flushed) check_await_fence(step, step->offset / PROGRAM_LINE, flushed);
}

/* --- moves --------------------------------------------------------------------------------------------------------------- */

static inline void leaves(check_line *line, const check_copy *copy, int host) {
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
        if (w && w->host == host) copy_dies(w);
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

/* What a link that is down loses never comes, in whatever order the program makes its steps: that is none of its mistakes. */
static void never_arrives(check_line *line, check_copy *copy, const program_move *move) {
    const uint32_t gone = copy->posted ? copy->posted : copy->cached;
    for (uint32_t number = 1; number <= WRITES; number++) {
        check_write *w = line_write(line, number);
        bool its = w && w->time == move->store;
        for (int word = 0; !move->store && word < LINE_WORDS; word++) its = its || held(gone, word) == number;
        if (w && its && w->host == move->host && !in_pool(line, number)) w->state |= WRITE_LOST;
    }
    if (!move->store) copy->posted = 0;
}

/* `kind` is a constant wherever this is called, so that each kind has a loop of its own. */
static inline __attribute__((always_inline)) void lines_move(int kind, const program_move *move) {
    const int host = move->host, pool = move->pool;
    check_line *line = (check_line *)(void *)program_watcher_line(pool, move->line);
    const check_room *room = room_now();
    for (int64_t number = move->line, end = number + move->lines; number < end && !room->full; number++, line++) {
        check_copy *copy = line_copy(line_noted(line, pool, number), host);
        switch (kind) {
        case MOVE_FETCH: copy->cached = line->pool, copy->present = 1; break;
        case MOVE_FETCH_POSTED: copy->cached = copy->posted, copy->present = 1; break;
        case MOVE_POST: leaves(line, copy, host), copy->posted = copy->cached; break;
        case MOVE_WRITE_BACK: leaves(line, copy, host), line->pool = copy->cached; break;
        case MOVE_LAND: line->pool = copy->posted, copy->posted = 0; break;
        case MOVE_DROP: copy->cached = 0, copy->present = 0; break;
        case MOVE_NT: arrives_nt(line, move); break;
        case MOVE_LEFT: is_left(line, move); break;
        case MOVE_LOST: never_arrives(line, copy, move); break;
        default: break; /* MOVE_FAILED: the bytes did not come */
        }
    }
}

static void on_move(const program_move *move) {
    if (move->pool >= PROGRAM_POOLS) return;
    switch (move->kind) {
    case MOVE_FETCH: lines_move(MOVE_FETCH, move); break;
    case MOVE_POST: lines_move(MOVE_POST, move); break;
    case MOVE_LAND: lines_move(MOVE_LAND, move); break;
    case MOVE_DROP: lines_move(MOVE_DROP, move); break;
    default: lines_move(move->kind, move); break;
    }
}

/* --- everything else ----------------------------------------------------------------------------------------------------- */

static void expect_stale(const program_step *step) {
    check_host *h = &room_now()->host[step->host];
    check_logbook *book = &room_now()->book[step->host];
    for (uint32_t k = 0; k < h->expected; k++)
        if (book->expect[k].pool == step->pool && book->expect[k].begin <= step->offset &&
            book->expect[k].end >= step->offset + step->nbytes)
            return;
    const uint32_t at = h->expected < EXPECTED ? h->expected++ : (uint32_t)(step->number % EXPECTED);
    book->expect[at].pool = step->pool;
    book->expect[at].begin = step->offset, book->expect[at].end = step->offset + step->nbytes;
}

static void on_other(const program_step *step) {
    check_room *room = room_now();
    check_thread *thread = thread_of(step);
    switch (step->kind) {
    case STEP_PROCESS_START: know_start(step->host, step->stage); /* fall through */
    case STEP_THREAD_START:
        if (step->thread >= room->threads) room->threads = step->thread + 1u;
        *thread = (check_thread){.host = step->host, .alive = true, .process = step->process, .copy = thread->copy};
        break;
    case STEP_THREAD_END: thread->alive = false; break;
    case STEP_PROCESS_END:
        if (!step->what) know_end(step->host, step->stage, time_of(step));
        for (uint32_t k = 0; k < room->threads; k++)
            if (room->thread[k].process == step->process) room->thread[k].alive &= step->what == END_GIVEN_UP;
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

static void look_at_waits(void) {
    const check_room *room = room_now();
    for (int k = 0; k < (int)room->threads; k++)
        for (int load = 0; room->thread[k].alive && load < LOADS; load++) rule_stuck(k, load);
}

static void on_stuck(void) {
    check_room *room = room_now();
    room->stuck = true;
    look_at_waits();
    if (room->full) rule_out_of_room();
    rule_tell_all();
}

/* A run that was given up is not judged for dirty lines, as it has not come to its last flushes. */
static void on_end(void) {
    const check_room *room = room_now();
    program_watched(room->lines, (uint64_t)room->chunks * sizeof(check_line));
    if (room->stuck) return;
    look_at_waits();
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
    .store = store_noted,
    .flush = on_flush,
    .fence = on_fence,
    .other = on_other,
    .move = on_move,
    .end = on_end,
    .stuck = on_stuck,
};
