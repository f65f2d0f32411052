#include "crash.h"

#include <string.h>

#include "tears.h"

crash_area *crash_now;

static const uint8_t *pool_bytes(int pool, int64_t line) { return image_of(0, pool)->cache.pool + line * PROGRAM_LINE; }

static uint64_t mixed(uint64_t hash, uint64_t word) {
    uint64_t z = (hash ^ word) * UINT64_C(0x9E3779B97F4A7C15);
    z = (z ^ z >> 32) * UINT64_C(0xD6E8FEB86659FD93);
    return z ^ z >> 29;
}

static uint64_t of_bytes(uint64_t hash, const uint8_t bytes[PROGRAM_LINE]) {
    uint64_t words[PROGRAM_LINE / 8];
    memcpy(words, bytes, sizeof words);
    for (int k = 0; k < PROGRAM_LINE / 8; k++) hash = mixed(hash, words[k]);
    return hash;
}

static uint64_t of_place(int pool, int64_t line) { return mixed((uint64_t)pool + 1, (uint64_t)line); }

/* --- stores that may not have arrived ------------------------------------------------------------------------------------ */

static crash_line *line_of(int host, int pool, int64_t line) {
    for (int k = 0; k < crash_now->line_count; k++) {
        crash_line *its = &crash_now->lines[k];
        if (its->line == line && its->pool == pool && its->host == host) return its;
    }
    return NULL;
}

static crash_line *new_line(int host, int pool, int64_t line) {
    if (crash_now->line_count == CRASH_LINES) {
        crash_now->left_out++;
        return NULL;
    }
    crash_line *its = &crash_now->lines[crash_now->line_count++];
    its->line = line, its->count = its->posted = 0;
    its->pool = (uint8_t)pool, its->host = (uint8_t)host;
    return its;
}

static void forget_line(crash_line *its) {
    const crash_line *last = &crash_now->lines[--crash_now->line_count];
    if (its != last) *its = *last;
}

/* The oldest stores of a line have arrived. */
static void forget_stores(crash_line *its, int count) {
    its->count -= count;
    its->posted = its->posted > count ? its->posted - count : 0;
    if (its->count) memmove(its->stores, its->stores + count, (size_t)its->count * sizeof *its->stores);
    else forget_line(its);
}

static void note_change(const program_step *s, int64_t line, int images) {
    const int host = s->host;
    const bool same = crash_now->changed[host].line == line && crash_now->changed[host].pool == s->pool;
    crash_now->changed[host].line = crash_now->changed[host].line == -1 || same ? line : -2;
    crash_now->changed[host].pool = s->pool, crash_now->changed[host].site = s->site;
    crash_now->changed[host].any = true, crash_now->changed[host].images += (uint8_t)images;
}

enum { WORD = 8 };
#define WHOLE UINT64_MAX

static void add_bytes(crash_line *its, const program_step *s, const uint8_t bytes[PROGRAM_LINE], uint64_t mask) {
    if (mask == WHOLE && its->count && memcmp(bytes, its->stores[its->count - 1].bytes, PROGRAM_LINE) == 0) return;
    if (its->count == CRASH_STORES) {
        crash_now->left_out++;
        forget_stores(its, 1);
    }
    crash_store *store = &its->stores[its->count++];
    memcpy(store->bytes, bytes, PROGRAM_LINE);
    store->number = s->number, store->mask = mask, store->site = s->site;
}

/* What a line may hold in the middle of a larger store: its first words, or its last ones, as copies go up or down. */
static void add_parts(crash_line *its, const program_step *s, const uint8_t *before, const uint8_t *bytes,
                      uint64_t mask) {
    uint8_t part[PROGRAM_LINE];
    for (int up = 0; up < 2; up++)
        for (int at = WORD; at < PROGRAM_LINE; at += WORD) {
            const int stored = up ? at : PROGRAM_LINE - at;
            memcpy(part, up ? bytes : before, (size_t)stored);
            memcpy(part + stored, (up ? before : bytes) + stored, (size_t)(PROGRAM_LINE - stored));
            const uint64_t first = (UINT64_C(1) << stored) - 1, arrived = up ? first : ~first;
            if (memcmp(part, before, PROGRAM_LINE) && memcmp(part, bytes, PROGRAM_LINE))
                add_bytes(its, s, part, mask == WHOLE ? mask : mask & arrived);
        }
}

static void add_store(const program_step *s, int64_t line, const uint8_t *past_the_cache) {
    crash_line *its = line_of(s->host, s->pool, line);
    uint8_t before[PROGRAM_LINE], bytes[PROGRAM_LINE];
    memcpy(before, its ? its->stores[its->count - 1].bytes : pool_bytes(s->pool, line), PROGRAM_LINE);
    memcpy(bytes, past_the_cache ? before : image_of(s->host, s->pool)->cache.data + line * PROGRAM_LINE, PROGRAM_LINE);
    uint64_t mask = past_the_cache ? 0 : WHOLE;
    for (int64_t k = 0; past_the_cache && k < s->nbytes; k++) {
        const int64_t at = s->offset + k - line * PROGRAM_LINE;
        if (at >= 0 && at < PROGRAM_LINE) bytes[at] = past_the_cache[k], mask |= UINT64_C(1) << at;
    }
    if (!past_the_cache && memcmp(bytes, before, PROGRAM_LINE) == 0) return; /* keep_unchanged, if it ever matters */
    if (!its && !(its = new_line(s->host, s->pool, line))) return;
    const int known = its->count;
    if (store_tears(s->offset, s->nbytes)) add_parts(its, s, before, bytes, mask);
    add_bytes(its, s, bytes, mask);
    note_change(s, line, its->count - known);
}

void crash_stored(const program_step *s, const uint8_t *past_the_cache) {
    if (crash_now->host >= 0) return;
    for (int64_t line = s->offset / PROGRAM_LINE; line * PROGRAM_LINE < s->offset + s->nbytes; line++)
        add_store(s, line, past_the_cache);
}

void crash_arrives(int pool, int64_t line) {
    crash_now->pools ^= of_bytes(of_place(pool, line), pool_bytes(pool, line));
}

/* Bytes of another host arrive on a line to which this one has stored what was there already: its own may arrive behind them. */
static void keep_unchanged(int host, const program_move *m) {
    const host_image *image = image_of(host, m->pool);
    const uint8_t *dirty = image->cache.data + m->line * PROGRAM_LINE;
    const bool is_dirty = image->cache.state[m->line] & DIRTY, is_posted = image->cache.pending[m->line];
    const program_step last = {.number = m->number};
    crash_line *its = line_of(host, m->pool, m->line);
    if (!its && (is_dirty || is_posted) && (its = new_line(host, m->pool, m->line)) && is_posted) {
        add_bytes(its, &last, image->cache.posted + m->line * PROGRAM_LINE, WHOLE);
        its->posted = its->count;
    }
    if (its && is_dirty && its->count == its->posted) add_bytes(its, &last, dirty, WHOLE);
}

/* Another host fetches a line, or stores to it, before the stores of this one arrive: a crash may come after that as well. */
static void note_meeting(const program_move *m) {
    for (int host = 0; m->kind != MOVE_FETCH && crash_now->host < 0 && host < here.area->options.hosts; host++)
        if (host != m->host) keep_unchanged(host, m);
    for (int k = 0; k < crash_now->line_count; k++) {
        const crash_line *its = &crash_now->lines[k];
        if (its->line == m->line && its->pool == m->pool && its->host != m->host)
            crash_now->changed[its->host].any = true;
    }
}

static void note_use(const program_move *m) {
    const uint32_t at = crash_now->use_count++;
    if (at >= POOL_USES) return;
    crash_now->uses[at] = (pool_use){m->line, m->number, m->pool, (uint8_t)here.area->stage, {0}};
}

/* A store past the cache has arrived, before which those of other threads may be still on their way. */
static bool forget_past(crash_line *its, uint64_t number) {
    const int count = its->count;
    its->count = 0;
    for (int k = 0; k < count; k++)
        if (its->stores[k].number != number || its->stores[k].mask == WHOLE) its->stores[its->count++] = its->stores[k];
    const bool any = its->count < count;
    if (!its->count) forget_line(its);
    return any;
}

void crash_moved(const program_move *m) {
    const bool whole = m->kind == MOVE_LAND || m->kind == MOVE_WRITE_BACK;
    if (whole) {
        const card_cache *c = &image_of(m->host, m->pool)->cache;
        const uint8_t *bytes = (m->kind == MOVE_LAND ? c->posted : c->data) + m->line * PROGRAM_LINE;
        crash_arrives(m->pool, m->line);
        crash_now->pools ^= of_bytes(of_place(m->pool, m->line), bytes);
    }
    const bool crashed = crash_now->host >= 0;
    if (m->kind == MOVE_FETCH || m->kind == MOVE_NT || whole) note_meeting(m), note_use(m);
    crash_line *its = line_of(crashed ? crash_now->host : m->host, m->pool, m->line);
    if (!its) return;
    if (crashed && whole) {
        forget_line(its); /* a host that had it all along writes over what the crash has left */
    } else if (!crashed && m->kind == MOVE_POST) {
        its->posted = its->count;
    } else if (!crashed && m->kind == MOVE_NT) {
        if (forget_past(its, m->store)) crash_now->changed[m->host].any = true;
    } else if (!crashed && whole) {
        const int count = m->kind == MOVE_LAND ? its->posted : its->count;
        if (count) crash_now->changed[m->host].any = true;
        if (count) forget_stores(its, count);
    }
}

void crash_make(void) {
    crash_now->host = -1;
    for (int host = 0; host < PROGRAM_HOSTS; host++) crash_now->changed[host].line = -1;
}

/* --- crashes ------------------------------------------------------------------------------------------------------------- */

static uint64_t what_it_leaves(int host) {
    uint64_t all = crash_now->pools + here.area->operations_ended[host];
    for (int k = 0; k < crash_now->line_count; k++) {
        const crash_line *its = &crash_now->lines[k];
        if (its->host != host) continue;
        uint64_t hash = mixed(of_place(its->pool, its->line), (uint64_t)its->count);
        for (int n = 0; n < its->count; n++) hash = of_bytes(hash ^ its->stores[n].mask, its->stores[n].bytes);
        all ^= hash;
    }
    return all;
}

/* Hash how many steps threads of other hosts have made; the one whose step begins has not made it. */
static uint64_t how_far_others_are(int host, int thread) {
    const program_area *a = here.area;
    uint64_t hash = 0;
    for (int k = 0; k < a->thread_count; k++)
        if (a->threads[k].host != host) hash = mixed(hash ^ (uint64_t)k, a->threads[k].steps - (k == thread));
    return hash;
}

static void add_point(int host, int thread) {
    const program_area *a = here.area;
    const uint32_t at = crash_now->point_count++;
    if (at >= CRASH_POINTS) return;
    const uint64_t others = how_far_others_are(host, thread);
    crash_now->points[at] = (crash_point){
        .step = a->steps,
        .trace = a->hash,
        .future = mixed(mixed(what_it_leaves(host), others), (uint64_t)a->stage << 8 | (uint64_t)host),
        .others = others,
        .line = crash_now->changed[host].line,
        .site = crash_now->changed[host].site,
        .host = (uint8_t)host,
        .pool = crash_now->changed[host].pool,
        .stage = (uint8_t)a->stage,
        .images = crash_now->changed[host].images,
    };
}

void crash_point_here(int thread) {
    for (int host = 0; crash_now->host < 0 && host < here.area->options.hosts; host++) {
        if (!crash_now->changed[host].any) continue;
        add_point(host, thread);
        crash_now->changed[host].any = false, crash_now->changed[host].line = -1;
        crash_now->changed[host].images = 0;
    }
}

/* All that may have arrived before is tried again: now it must explain the operation's result. */
void crash_operation_ended(int host) {
    if (crash_now->host >= 0) return;
    crash_now->changed[host].any = true, crash_now->changed[host].line = -2;
}

void crash_begins(int host) {
    uint16_t number = 0;
    crash_now->host = host;
    crash_now->trace = here.area->hash;
    for (int k = 0; k < crash_now->line_count; k++)
        if (crash_now->lines[k].host == host) crash_now->lines[k].number = number++;
}

const crash_store *crash_decide(mover by, int pool, int64_t line) {
    static crash_store last;
    crash_line *its = crash_now->host < 0 ? NULL : line_of(crash_now->host, pool, line);
    if (!its) return NULL;
    const uint32_t at = crash_now->arrival_count++;
    const int asked = crash_now->lose[its->number], lost = asked < its->count ? asked : its->count;
    const int arrived = its->count - lost;
    if (at < CRASH_ARRIVALS)
        crash_now->arrivals[at] = (crash_arrival){
            .line = line,
            .step = here.area->steps,
            .lost_step = lost ? its->stores[arrived].number : 0,
            .lost_site = lost ? its->stores[arrived].site : 0,
            .stores = its->count,
            .lost = lost,
            .thread = by.thread,
            .host = (uint8_t)by.host,
            .pool = (uint8_t)pool,
            .number = its->number,
            .torn = lost && arrived && its->stores[arrived - 1].number == its->stores[arrived].number,
        };
    if (arrived) last = its->stores[arrived - 1], memcpy(last.bytes, pool_bytes(pool, line), PROGRAM_LINE);
    for (const crash_store *store = its->stores; store < its->stores + arrived; store++)
        for (int k = 0; k < PROGRAM_LINE; k++)
            if (store->mask >> k & 1) last.bytes[k] = store->bytes[k];
    forget_line(its);
    return arrived ? &last : NULL;
}

void crash_read(const program_step *s) {
    for (uint32_t k = crash_now->arrival_count; k > 0 && k <= CRASH_ARRIVALS; k--) {
        crash_arrival *its = &crash_now->arrivals[k - 1];
        if (its->step != s->number) return;
        if (its->thread == s->thread) its->site = s->site;
    }
}
