/* Nature evicts, prefetches and lands lines, as caches may at any time. The adversary of each thread draws how often, and
 * hosts have habits.
 *
 * Some bugs take several moves in one order, which independent draws hardly ever give: one line of a message arrives at
 * once, another one only at the fence. So in half of all runs a host treats a line alike from beginning to end. */
#include "self.h"
#include "tears.h"

static program_area *area(void) { return here.area; }

enum { SOMETIMES = 3, OFTEN = 7, RARELY = 15 }; /* one time in 4, in 8, and in 16 */

void nature_begin(program_area *a) {
    uint64_t seed = a->options.seed;
    a->habits = !(splitmix(&seed) & 1);
    for (int k = 0; k < ACTIONS && a->options.nature; k++) {
        const double chance = a->options.rates[k] * 0x1p53;
        a->chances[k] = (uint64_t)chance;
        a->chances[k] += (double)a->chances[k] < chance;
    }
}

/* Let each eight lines of a row do as their first one: long messages then take fewer moves. */
#define EIGHT UINT64_C(0xFF)
static uint64_t by_eights(uint64_t bits) { return (bits & UINT64_C(0x0101010101010101)) * EIGHT; }

/* Which lines of a row a host is eager, or slow, to move: bits from its first line on. */
typedef struct {
    uint64_t eager, lazy;
} habits;

static habits habits_of_block(int host, int pool, int64_t block, enum action action) {
    uint64_t seed = area()->options.seed;
    splitmix(&seed);
    seed ^= ((uint64_t)block << 16 | (uint64_t)pool << 12 | (uint64_t)host << 4 | (uint64_t)action) *
            UINT64_C(0xD6E8FEB86659FD93);
    uint64_t some = splitmix(&seed), which = splitmix(&seed);
    if (splitmix(&seed) & 1) some = by_eights(some), which = by_eights(which);
    return (habits){some & which, some & ~which};
}

static habits habits_of(int host, int pool, int64_t line, enum action action) {
    const int at = (int)(line % ROW_LINES);
    if (!area()->habits || (area()->pages_hosts && action != LAND)) return (habits){0, 0};
    habits its = habits_of_block(host, pool, line / ROW_LINES, action);
    its.eager >>= at, its.lazy >>= at;
    if (!at) return its;
    const habits next = habits_of_block(host, pool, line / ROW_LINES + 1, action);
    its.eager |= next.eager << (ROW_LINES - at), its.lazy |= next.lazy << (ROW_LINES - at);
    return its;
}

/* Move some of these lines, those of the bits. */
static void move_some(mover by, enum action action, pool_lines lines, uint64_t bits) {
    pool_lines run = {lines.pool, 0, lines.first};
    while (next_run(&run, &bits)) image_nature_run(by, action, run);
}

static bool ever(enum action action) { return area()->chances[action] > 0; }

/* Make the draws of adversary_actions at once where they come to no move, as most do; false: there is one, and none is made. */
static bool draws_nothing(adversary *nature) {
    uint64_t state = nature->state;
    bool any = false;
    for (int k = 0; k < ACTIONS; k++) any |= splitmix(&state) >> 11 < area()->chances[k];
    if (!any) nature->state = state;
    return !any;
}

/* Make the moves that a thread's adversary draws: of lines that the thread has touched lately, and of lines beside them. */
static void draw(program_self *me, int thread) {
    if (draws_nothing(&area()->natures[thread])) return;
    enum action actions[ACTIONS];
    adversary_move move;
    const mover by = {area()->threads[thread].host, (uint16_t)thread, BY_NATURE};
    adversary *nature = &area()->natures[thread];
    const int count = adversary_actions(nature, actions);
    for (int k = 0; k < count; k++) {
        adversary_aim(nature, actions[k], &move);
        const int pool = move.lines.card;
        if (move.lines.last > area()->extent[pool]) move.lines.last = area()->extent[pool];
        for (pool_lines row = {pool, move.lines.first, 0}; row.first < move.lines.last; row.first += ROW_LINES) {
            uint64_t bits = 0;
            row.last = row.first + ROW_LINES < move.lines.last ? row.first + ROW_LINES : move.lines.last;
            for (int64_t line = row.first; line < row.last; line++)
                bits |= (uint64_t)move.among[line - move.lines.first] << (line - row.first);
            if (row.last - row.first == ROW_LINES) bits = by_eights(bits);
            move_some(by, move.action, row, bits & ~habits_of(by.host, pool, row.first, move.action).lazy);
        }
        if (move.action != LAND || thread != me->thread) continue;
        for (int64_t line = move.lines.first; posts_past(me) && line < move.lines.last; line++)
            if (!(habits_of(by.host, pool, line, LAND).lazy & 1))
                posted_land(me, by, (pool_lines){pool, line, line + 1});
    }
}

/* Now and then, prefetch any line that was ever touched, also one that only other hosts have touched. */
static void fetch_anywhere(int thread) {
    adversary *nature = &area()->natures[thread];
    const uint64_t which = splitmix(&nature->state), drawn = splitmix(&nature->state), line = splitmix(&nature->state);
    const bool seldom = 2 * (drawn >> 11) >= area()->chances[PREFETCH];
    if (!ever(PREFETCH) || (seldom && !area()->habits)) return;
    const int host = area()->threads[thread].host, pool = (int)(which % (uint64_t)area()->options.pools);
    if (!area()->extent[pool]) return;
    const int64_t at = (int64_t)(line % (uint64_t)area()->extent[pool]);
    const habits its = habits_of(host, pool, at, PREFETCH);
    if (its.lazy & 1 || (seldom && !(its.eager & 1))) return;
    image_nature((mover){host, (uint16_t)thread, BY_NATURE}, PREFETCH, pool, at);
}

/* Whether nature may move lines of a thread's host now: the thread waits for its turn or has ended, and all its stores were
 * reported. */
static bool idles(int thread) {
    const uint32_t state = turn_state(thread);
    return (state == THREAD_WAITING || state == THREAD_ENDED) && area()->opens[thread].nbytes == 0;
}

void nature_between(program_self *me) {
    if (!area()->options.nature) return;
    draw(me, me->thread);
    if (area()->pages_hosts) { /* no line is ever absent there, and steps differ between such hosts */
        draw(me, me->thread);
        return;
    }
    int thread = me->thread;
    if (!area()->options.free_running) { /* with --free, threads come and go meanwhile */
        const uint64_t drawn = splitmix(&area()->natures[thread].state);
        const int other = (int)(drawn % (uint64_t)area()->thread_count);
        if (idles(other)) thread = other;
    }
    draw(me, thread);
    fetch_anywhere(thread);
}

/* Draw for a step what does not change the draws for other steps. */
static uint64_t drawn_for(uint64_t number) {
    uint64_t state = area()->options.seed ^ number * 0xD6E8FEB86659FD93u;
    return splitmix(&state);
}

/* Large copies hardly have a flag among their words. */
static uint64_t rarely_of(const pool_lines *lines) { return lines->last - lines->first > 2 ? RARELY : SOMETIMES; }

/* Return another host that has stored to a line what has not arrived yet, or -1. */
static int stored_by_other(int pool, int64_t line) {
    for (int host = 0; host < area()->options.hosts; host++) {
        const card_cache *c = &image_of(host, pool)->cache;
        if (host != here.host && (c->state[line] & DIRTY || c->pending[line])) return host;
    }
    return -1;
}

bool nature_divides(const void *from, size_t nbytes, divided_load *load) {
    if (area()->options.free_running || !ever(EVICT) || area()->pages_hosts)
        return false; /* before a look at what others write */
    const uint64_t drawn = drawn_for(~area()->steps);
    pool_range range;
    if (drawn & SOMETIMES || !range_in_pool(from, nbytes, &range) || !store_tears(range.offset, range.nbytes))
        return false;
    const pool_lines lines = range_lines(&range);
    load->line = lines.first + (int64_t)((drawn >> 32) % (uint64_t)(lines.last - lines.first)), load->pool = range.pool;
    const int64_t line = load->line * LINE_BYTES, end = range.offset + range.nbytes;
    const int64_t first = (line > range.offset ? line : range.offset) / 8 + 1;
    const int64_t last = ((line + LINE_BYTES < end ? line + LINE_BYTES : end) - 1) / 8;
    if (drawn & rarely_of(&lines) || first > last || is_coherent(range.pool, load->line) ||
        image_of(here.host, range.pool)->cache.state[load->line] & DIRTY)
        return false;
    load->by = stored_by_other(range.pool, load->line);
    load->down = drawn >> 6 & 1;
    load->cut = (first + (int64_t)((drawn >> 8) % (uint64_t)(last - first + 1))) * 8 - range.offset;
    return load->by >= 0;
}

bool nature_tears(const program_step *store) {
    const pool_range range = {store->pool, store->offset, store->nbytes};
    pool_lines lines = range_lines(&range);
    const uint64_t drawn = drawn_for(store->number), rarely = rarely_of(&lines);
    const bool draws = ever(EVICT), asked = area()->options.every || area()->options.script_length;
    if (!store_tears(store->offset, store->nbytes) || area()->options.free_running || area()->pages_hosts ||
        (draws ? drawn & rarely : !asked))
        return false;
    if (draws) {
        lines.first += (int64_t)((drawn >> 32) % (uint64_t)(lines.last - lines.first));
        lines.last = lines.first + 1;
    }
    tears_note(store, lines);
    return draws;
}

/* A store was reported: evict a line of it as it was in its middle, and let others see that now and then; or those of its lines that
 * this host is eager to evict, before the next store. */
void nature_stored(const program_step *store, bool tears) {
    if (!ever(EVICT)) return;
    const mover by = {store->host, store->thread, BY_NATURE};
    const uint64_t drawn = drawn_for(store->number);
    if (tears && tear_make(by.host, store->pool, area()->torn.first, drawn >> 6 & 1, 1 + (int)((drawn >> 8) % 7))) {
        if (drawn >> 4 & 1) turn_stay_behind(store->thread, STAYS_BEHIND);
        return;
    }
    const pool_range range = {store->pool, store->offset, store->nbytes};
    const pool_lines lines = range_lines(&range);
    for (int64_t line = lines.first; area()->habits && line < lines.last; line += ROW_LINES) {
        const pool_lines row = {lines.pool, line, lines.last};
        move_some(by, EVICT, row, habits_of(by.host, lines.pool, line, EVICT).eager & row_bits(row));
    }
}

void nature_touched(program_self *me, pool_lines lines, bool on) {
    adversary *nature = &area()->natures[me->thread];
    nature->card_lines = image_of(here.host, lines.pool)->lines;
    if (on) nature->touched[(nature->touches - 1) % LAPS].last = lines.last;
    else adversary_touched(nature, (window){lines.pool, lines.first, lines.last});
}

/* A line that is flushed, or stored past the cache, lands at once, every other time or by habit. Otherwise a missing fence
 * before it would hardly ever show, as the next step is often a fence. Now and then the thread stays behind there for as long
 * as others need to see the line; seldom within a message of many lines, as each time costs two changes of threads. Whether one
 * call flushes the lines of a row or many do, each takes the next bits of what was drawn for as many as ROW_LINES of them. */
posted_row nature_posts(program_self *me, pool_lines lines, bool on) {
    uint64_t *random = &area()->natures[me->thread].state;
    posted_row row = {.last = lines.last};
    if (!ever(LAND)) return row;
    if (!on || !me->drawn.left) {
        const uint64_t drawn = splitmix(random);
        const uint64_t each = splitmix(random);
        me->drawn.lands = (each & EIGHT) | (by_eights(each) & ~EIGHT); /* short messages line by line */
        me->drawn.left = ROW_LINES;
        me->drawn.stays = UINT64_C(1) << (drawn >> 32) % ROW_LINES;
        if (!on) me->drawn.stays = (me->drawn.stays & ~UINT64_C(1)) | !(drawn & OFTEN);
    }
    if (row.last - lines.first > me->drawn.left) row.last = lines.first + me->drawn.left;
    const habits its = habits_of(here.host, lines.pool, lines.first, LAND);
    row.lands = (me->drawn.lands & ~its.lazy) | its.eager;
    const uint64_t stays = row.lands & me->drawn.stays & row_bits((pool_lines){lines.pool, lines.first, row.last});
    row.stays = stays != 0;
    if (row.stays) row.last = lines.first + 1 + __builtin_ctzll(stays);
    return row;
}

void nature_stored_past(program_self *me, int pool, int64_t line) {
    const pool_lines its = {pool, line, line + 1};
    if (area()->pages_hosts) return;
    const posted_row row = nature_posts(me, its, false);
    if (row.lands) posted_land(me, (mover){here.host, (uint16_t)me->thread, BY_NATURE}, its);
    if (row.stays) turn_stay_behind(me->thread, STAYS_BEHIND);
}

void nature_flushed(program_self *me, pool_lines lines, posted_row row) {
    const int64_t count = lines.last - lines.first;
    move_some((mover){here.host, (uint16_t)me->thread, BY_NATURE}, LAND, lines, row.lands & row_bits(lines));
    me->drawn.left = me->drawn.left > count ? me->drawn.left - (int)count : 0;
    if (me->drawn.left) me->drawn.lands >>= count, me->drawn.stays >>= count;
    if (row.stays) turn_stay_behind(me->thread, STAYS_BEHIND);
}
