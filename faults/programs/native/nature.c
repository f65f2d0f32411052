/* Nature evicts, prefetches and lands lines, as caches may at any time. The adversary of each thread draws how often, and
 * hosts have habits.
 *
 * Some bugs take several moves in one order, which independent draws hardly ever give: one line of a message arrives at
 * once, another one only at the fence. So in half of all runs a host treats a line alike from beginning to end. */
#include "self.h"
#include "tears.h"

static program_area *area(void) { return here.area; }

enum { SOMETIMES = 3, OFTEN = 7, RARELY = 15, SELDOM = 63 }; /* one time in 4, in 8, in 16, and in 64 */
enum habit { AT_EASE, EAGER, LAZY };

void nature_begin(program_area *a) {
    uint64_t seed = a->options.seed;
    a->habits = !(splitmix(&seed) & 1);
    for (int k = 0; k < ACTIONS && a->options.nature; k++) {
        const double chance = a->options.rates[k] * 0x1p53;
        a->chances[k] = (uint64_t)chance;
        a->chances[k] += (double)a->chances[k] < chance;
    }
}

static enum habit habit_of(int host, int pool, int64_t line, enum action action) {
    uint64_t seed = area()->options.seed;
    if (!area()->habits || (area()->pages_hosts && action != LAND)) return AT_EASE;
    splitmix(&seed);
    seed ^= ((uint64_t)line << 16 | (uint64_t)pool << 12 | (uint64_t)host << 4 | (uint64_t)action) *
            0xD6E8FEB86659FD93u;
    static const enum habit habits[] = {AT_EASE, AT_EASE, EAGER, LAZY};
    return habits[splitmix(&seed) >> 7 & 3];
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
        int64_t from = move.lines.first;
        for (int64_t line = from; line < move.lines.last; line++)
            if (!move.among[line - move.lines.first] || habit_of(by.host, pool, line, move.action) == LAZY)
                image_nature_run(by, move.action, (pool_lines){pool, from, line}), from = line + 1;
        image_nature_run(by, move.action, (pool_lines){pool, from, move.lines.last});
        if (move.action != LAND || thread != me->thread) continue;
        for (int64_t line = move.lines.first; posts_past(me) && line < move.lines.last; line++)
            if (habit_of(by.host, pool, line, LAND) != LAZY) posted_land(me, by, (pool_lines){pool, line, line + 1});
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
    const enum habit habit = habit_of(host, pool, at, PREFETCH);
    if (habit == LAZY || (habit == AT_EASE && seldom)) return;
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
    const int64_t last = (store->offset + store->nbytes - 1) / LINE_BYTES;
    for (int64_t line = store->offset / LINE_BYTES; line <= last; line++) {
        if (habit_of(by.host, store->pool, line, EVICT) != EAGER) continue;
        image_nature(by, EVICT, store->pool, line);
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
 * as others need to see the line; seldom within a message of many lines, as each time costs two changes of threads. */
posted_row nature_posts(const program_self *me, pool_lines lines, bool on) {
    adversary *nature = &area()->natures[me->thread];
    posted_row row = {.last = lines.last};
    if (!ever(LAND)) return row;
    if (row.last - lines.first > ROW_LINES) row.last = lines.first + ROW_LINES;
    for (int64_t line = lines.first; line < row.last; line++, on = true) {
        const enum habit habit = habit_of(here.host, lines.pool, line, LAND);
        const uint64_t drawn = splitmix(&nature->state);
        const bool lands = (habit == AT_EASE && !(drawn & 1)) || habit == EAGER;
        row.lands |= (uint64_t)lands << (line - lines.first);
        row.stays = lands & !(drawn >> 1 & (on ? SELDOM : OFTEN));
        if (row.stays) row.last = line + 1;
    }
    return row;
}

void nature_stored_past(program_self *me, int pool, int64_t line) {
    const pool_lines its = {pool, line, line + 1};
    if (area()->pages_hosts) return;
    const posted_row row = nature_posts(me, its, false);
    if (row.lands) posted_land(me, (mover){here.host, (uint16_t)me->thread, BY_NATURE}, its);
    if (row.stays) turn_stay_behind(me->thread, STAYS_BEHIND);
}

void nature_flushed(program_self *me, int pool, int64_t first, posted_row row) {
    const mover by = {here.host, (uint16_t)me->thread, BY_NATURE};
    while (row.lands) {
        first += __builtin_ctzll(row.lands), row.lands >>= __builtin_ctzll(row.lands);
        const int count = row.lands == UINT64_MAX ? ROW_LINES : __builtin_ctzll(~row.lands);
        image_nature_run(by, LAND, (pool_lines){pool, first, first + count});
        row.lands = count < ROW_LINES ? row.lands >> count : 0, first += count;
    }
    if (row.stays) turn_stay_behind(me->thread, STAYS_BEHIND);
}
