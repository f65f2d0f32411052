#define _GNU_SOURCE
#include "image.h"
#include "crash.h"
#include "self.h"
#include "tears.h"

#include <fcntl.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static void tell_lines(mover by, int kind, pool_lines lines, int first, int count, uint64_t store) {
    const bool watched = program_watcher_now && program_watcher_now->move;
    if (!watched && !crash_now && !here.area->invariant_count && !here.area->tear_count) return;
    const program_move move = {
        .number = here.area->steps,
        .kind = (uint8_t)kind,
        .cause = by.cause,
        .host = (uint8_t)by.host,
        .pool = (uint8_t)lines.pool,
        .thread = by.thread,
        .first = (uint8_t)first,
        .count = (uint8_t)count,
        .line = lines.first,
        .lines = lines.last - lines.first,
        .store = store,
    };
    if (crash_now) crash_moved(&move);
    if (here.area->invariant_count) holds_moved(&move);
    if (here.area->tear_count) tears_moved(&move);
    if (watched) program_watcher_now->move(&move);
}

static void tell(mover by, int kind, int pool, int64_t line, int first, int count, uint64_t store) {
    tell_lines(by, kind, (pool_lines){pool, line, line + 1}, first, count, store);
}

/* --- runs of lines --------------------------------------------------------------------------------------------------- */

static uint8_t *run_at(uint8_t *all, pool_lines lines) { return all + lines.first * LINE_BYTES; }
static size_t run_bytes(pool_lines lines) { return (size_t)(lines.last - lines.first) * LINE_BYTES; }

#define EIGHT(byte) ((byte) * UINT64_C(0x0101010101010101))

static uint64_t eight(const uint8_t *at) {
    uint64_t word;
    memcpy(&word, at, sizeof word);
    return word;
}

/* Whether eight bytes are alike. */
static bool all_are(const uint8_t *at, uint8_t byte) { return eight(at) == EIGHT(byte); }

/* Whether lines of a host may move at once. */
static bool together(int host, int pool) {
    const program_area *a = here.area;
    const bool watched = a->options.every || crash_now || a->invariant_count; /* each move by itself */
    return !watched && !damage_armed(image_of(host, pool)->cache.damage) && !program_coherent_anywhere;
}

/* Return the end of those of these lines, from the first on, whose stores are all reported. */
static int64_t told_end(const host_image *image, pool_lines lines) {
    int64_t end = lines.first;
    if (memcmp(run_at(image->twin, lines), run_at(image->cache.data, lines), run_bytes(lines)) == 0) return lines.last;
    while (end < lines.last && image_is_told(image, end)) end++;
    return end;
}

int64_t image_run(int host, pool_lines lines, uint8_t state, enum pending pending) {
    const host_image *image = image_of(host, lines.pool);
    if (!together(host, lines.pool)) return lines.first;
    const uint8_t *states = image->cache.state, *pendings = image->cache.pending, its = pending == SOME_PENDING;
    const bool any = pending == ANY_PENDING;
    int64_t end = lines.first;
    while (end + 8 <= lines.last && all_are(states + end, state) && (any || all_are(pendings + end, its))) end += 8;
    while (end < lines.last && states[end] == state && (any || pendings[end] == its)) end++;
    lines.last = end;
    return told_end(image, lines);
}

int64_t image_row(int host, pool_lines lines, row_states *row) {
    const host_image *image = image_of(host, lines.pool);
    const uint8_t *states = image->cache.state + lines.first, *pending = image->cache.pending + lines.first;
    const int64_t most = lines.last - lines.first < ROW_LINES ? lines.last - lines.first : ROW_LINES;
    int64_t count = 0;
    *row = (row_states){0, 0};
    for (; count + 8 <= most; count += 8) { /* a bit of each byte */
        const uint64_t its = eight(states + count), each = UINT64_C(0x0102040810204080);
        if (its & ~EIGHT(PRESENT | DIRTY) || eight(pending + count)) break;
        row->present |= (its & EIGHT(PRESENT)) * each >> 56 << count;
        row->dirty |= (its / DIRTY & EIGHT(1)) * each >> 56 << count;
    }
    for (; count < most && !(states[count] & ~(PRESENT | DIRTY)) && !pending[count]; count++) {
        row->present |= (uint64_t)(states[count] & PRESENT) << count;
        row->dirty |= (uint64_t)(states[count] / DIRTY) << count;
    }
    lines.last = lines.first + count;
    return together(host, lines.pool) ? told_end(image, lines) : lines.first;
}

static void set_run(card_cache *c, pool_lines run, uint8_t state) {
    if (run.last - run.first == 1) c->state[run.first] = state;
    else memset(c->state + run.first, state, run_bytes(run) / LINE_BYTES);
}

static void told_run(const host_image *image, pool_lines run) {
    put_bytes(run_at(image->twin, run), run_at(image->cache.data, run), run_bytes(run));
}

/* Fetch a run of absent lines, of which nothing is pending. */
static void fetch_run(mover by, pool_lines run) {
    host_image *image = image_of(by.host, run.pool);
    cache_touch(&image->cache, run.first, run.last, false);
    told_run(image, run);
    tell_lines(by, MOVE_FETCH, run, 0, 0, 0);
}

/* Bring the image of a run of absent lines up to date, of which nothing is pending, as renew does. */
static void renew_run(mover by, pool_lines run) {
    host_image *image = image_of(by.host, run.pool);
    put_bytes(run_at(image->cache.data, run), run_at(image->cache.pool, run), run_bytes(run));
    told_run(image, run);
}

/* Let a run of lines leave the cache, where nothing of it is pending. */
static void drop_run(mover by, pool_lines run, bool hit) {
    host_image *image = image_of(by.host, run.pool);
    set_run(&image->cache, run, 0);
    tell_lines(by, MOVE_DROP, run, 0, 0, 0);
    if (hit) return; /* the load that comes now hits the old bytes */
    renew_run(by, run);
    if (in_pages(by.host)) fetch_run(by, run);
}

/* Let a run of dirty lines go to the pool and leave the cache, where nothing of it is pending. */
static void evict_run(mover by, pool_lines run) {
    tell_lines(by, MOVE_WRITE_BACK, run, 0, LINE_BYTES, 0);
    rest_ends();
    cache_invalidate(&image_of(by.host, run.pool)->cache, run.first, run.last);
    drop_run(by, run, false);
}

/* Report that those of these lines arrive that are pending; returns whether there are any. */
static bool tell_arrivals(mover by, pool_lines run) {
    const uint8_t *pending = image_of(by.host, run.pool)->cache.pending;
    bool any = false;
    for (int64_t at = run.first, end; at < run.last; at = end) {
        for (end = at + 1; end + 8 <= run.last && all_are(pending + end, pending[at]);) end += 8;
        while (end < run.last && pending[end] == pending[at]) end++;
        if (!pending[at]) continue;
        tell_lines(by, MOVE_LAND, (pool_lines){run.pool, at, end}, 0, LINE_BYTES, 0);
        any = true;
    }
    if (any) rest_ends();
    return any;
}

/* Complete a run of lines that were flushed; returns whether any is pending. */
static bool complete_run(mover by, pool_lines run, bool lingers) {
    card_cache *c = &image_of(by.host, run.pool)->cache;
    const bool lands = tell_arrivals(by, run);
    cache_complete(c, run.first, run.last);
    if (lingers) set_run(c, run, PRESENT | FLUSHED | LINGERS);
    else drop_run(by, run, false);
    return lands;
}

void image_flush_row(mover by, pool_lines lines, uint64_t dirty, bool keep) {
    pool_lines run = {lines.pool, 0, lines.first};
    while (next_run(&run, &dirty)) tell_lines(by, MOVE_POST, run, 0, 0, 0);
    cache_flush(&image_of(by.host, lines.pool)->cache, lines.first, lines.last, keep);
}

/* --- lines ------------------------------------------------------------------------------------------------------------ */

/* Report that a line arrives or, where the link is down, that it is lost. */
static void tell_arrival(mover by, int kind, int pool, int64_t line) {
    uint64_t *damage = here.area->damage;
    const bool lost = damage_armed(damage) && damage_cut_off(damage, by.host, pool) != DONE;
    tell(by, lost ? MOVE_LOST : kind, pool, line, 0, LINE_BYTES, 0);
    rest_ends();
}

static void told_line(int host, int pool, int64_t line) {
    const host_image *image = image_of(host, pool);
    memcpy(image->twin + line * LINE_BYTES, image->cache.data + line * LINE_BYTES, LINE_BYTES);
}

/* A line is about to be fetched from the pool, or stored to there in part: what a crashed host has left of it is decided. */
static void decide_crash(mover by, int pool, int64_t line) {
    const crash_store *last = crash_now ? crash_decide(by, pool, line) : NULL;
    if (!last) return;
    memcpy(image_of(by.host, pool)->cache.pool + line * LINE_BYTES, last->bytes, LINE_BYTES);
    tell((mover){crash_now->host, by.thread, BY_NATURE}, MOVE_LEFT, pool, line, 0, LINE_BYTES, last->number);
}

void image_decide(mover by, pool_lines lines) {
    for (int64_t line = lines.first; line < lines.last; line++) decide_crash(by, lines.pool, line);
}

void image_told(int host, int pool, int64_t offset, int64_t nbytes) {
    host_image *image = image_of(host, pool);
    put_bytes(image->twin + offset, image->cache.data + offset, (size_t)nbytes);
}

void image_find_stores_there(mover by, int pool, int64_t line) {
    host_image *image = image_of(by.host, pool);
    const int64_t begin = line * LINE_BYTES;
    if (!(image->cache.state[line] & PRESENT)) return;
    if (image_is_told(image, line)) return;
    for (int64_t at = begin; at < begin + LINE_BYTES; at += 8) {
        const uint8_t *before = image->twin + at, *after = image->cache.data + at;
        if (memcmp(before, after, 8) == 0 || !program_watcher_now || !program_watcher_now->store) continue;
        const program_step step = {
            .number = here.area->steps,
            .kind = STEP_STORE,
            .host = (uint8_t)by.host,
            .pool = (uint8_t)pool,
            .thread = by.thread,
            .other = UINT16_MAX,
            .process = here.area->threads[by.thread].process,
            .stage = (uint16_t)here.area->stage,
            .offset = at,
            .nbytes = 8,
        };
        program_watcher_now->store(&step, before, after);
    }
    cache_touch(&image->cache, line, line + 1, true);
    told_line(by.host, pool, line);
}

static void fetch(mover by, int pool, int64_t line) {
    card_cache *c = &image_of(by.host, pool)->cache;
    const int kind = c->pending[line] ? MOVE_FETCH_POSTED : MOVE_FETCH;
    if (kind == MOVE_FETCH) decide_crash(by, pool, line);
    const uint64_t odd = image_unannounced(by.host, pool, line);
    uint8_t kept[LINE_BYTES], *bytes = c->data + line * LINE_BYTES;
    if (odd) memcpy(kept, bytes, LINE_BYTES);
    cache_touch(c, line, line + 1, false);
    told_line(by.host, pool, line);
    for (int b = 0; odd && b < LINE_BYTES; b++)
        if (odd >> b & 1) bytes[b] = kept[b]; /* bytes of unannounced stores stay until they are found */
    tell(by, kind, pool, line, 0, 0, 0);
}

/* Bring lines into the cache of which those that cannot be fetched are overwritten whole: nobody sees what they held. */
static void bring(mover by, pool_lines lines, bool dirty) {
    card_cache *c = &image_of(by.host, lines.pool)->cache;
    if (lines.last > here.area->extent[lines.pool]) here.area->extent[lines.pool] = lines.last;
    const bool alike = !program_coherent_anywhere && !in_pages(by.host);
    for (int64_t k = lines.first, end; k < lines.last; k = end) {
        end = c->state[k] ? k : image_run(by.host, (pool_lines){lines.pool, k, lines.last}, 0, NONE_PENDING);
        if (end > k) fetch_run(by, (pool_lines){lines.pool, k, end});
        if (end > k) continue;
        end = k + 1;
        if (!alike && is_coherent(lines.pool, k)) {
            here.area->coherent_met |= UINT64_C(1) << coherent_range(lines.pool, k * LINE_BYTES);
            continue;
        }
        if (!alike) image_find_stores(by, lines.pool, k);
        if (!(c->state[k] & PRESENT)) fetch(by, lines.pool, k);
        if (dirty && !alike) cache_touch(c, k, k + 1, true);
    }
    if (dirty && alike) cache_touch(c, lines.first, lines.last, true);
}

static enum status failed(enum status status, mover by, int pool, int64_t line) {
    tell(by, MOVE_FAILED, pool, line, 0, 0, 0);
    return status;
}

enum status image_touch(mover by, pool_lines lines, bool dirty, int64_t *broken) {
    const card_cache *c = &image_of(by.host, lines.pool)->cache;
    const enum status status = cache_check_load(c, lines.first, lines.last, broken);
    if (status != DONE) return failed(status, by, lines.pool, *broken);
    bring(by, lines, dirty);
    return DONE;
}

enum status image_overwrite(mover by, const pool_range *range, int64_t *broken) {
    const card_cache *c = &image_of(by.host, range->pool)->cache;
    const pool_lines lines = range_lines(range);
    enum status status;
    for (int64_t k = lines.first; (status = cache_check_load(c, k, lines.last, broken)) != DONE; k = *broken + 1) {
        const int64_t at = *broken * LINE_BYTES;
        const bool whole = at >= range->offset && at + LINE_BYTES <= range->offset + range->nbytes;
        const bool coherent = is_coherent(range->pool, *broken); /* it arrives at once: what is lost must fail */
        if (!whole || (coherent && status != POISONED)) return failed(status, by, range->pool, *broken);
        if (coherent) damage_overwritten(c->damage, range->pool, *broken, *broken + 1);
    }
    bring(by, lines, true);
    return DONE;
}

/* Bring the image of an absent line up to date, for code that announces nothing, such as the C library's: it sees the line as
 * if nature had fetched it when it was dropped. Announced loads fetch it when they come. */
static void renew(int host, int pool, int64_t line) {
    const card_cache *c = &image_of(host, pool)->cache;
    if (is_coherent(pool, line) || image_unannounced(host, pool, line)) return;
    memcpy(c->data + line * LINE_BYTES, (c->pending[line] ? c->posted : c->pool) + line * LINE_BYTES, LINE_BYTES);
    told_line(host, pool, line);
}

static void dropped(mover by, int pool, int64_t line) {
    int64_t broken;
    tell(by, MOVE_DROP, pool, line, 0, 0, 0);
    renew(by.host, pool, line);
    if (in_pages(by.host)) image_touch(by, (pool_lines){pool, line, line + 1}, false, &broken);
}

void image_flush(mover by, int pool, int64_t line, bool keep) {
    card_cache *c = &image_of(by.host, pool)->cache;
    image_find_stores(by, pool, line);
    if (c->state[line] & DIRTY) {
        if (c->pending[line]) tell_arrival(by, MOVE_LAND, pool, line);
        tell(by, MOVE_POST, pool, line, 0, 0, 0);
    }
    cache_flush(c, line, line + 1, keep);
}

static bool complete(mover by, int pool, int64_t line, bool lingers) {
    card_cache *c = &image_of(by.host, pool)->cache;
    image_find_stores(by, pool, line);
    const uint8_t state = c->state[line];
    const bool lands = c->pending[line];
    if (lands) tell_arrival(by, MOVE_LAND, pool, line);
    cache_complete(c, line, line + 1);
    if (!(state & FLUSHED)) {
        c->state[line] = state;
    } else if (state & PRESENT && lingers) {
        c->state[line] = state | LINGERS;
    } else if (state & PRESENT) {
        dropped(by, pool, line);
    }
    if (!(state & PRESENT)) renew(by.host, pool, line);
    return lands;
}

bool image_complete(mover by, pool_lines lines, bool lingers) {
    const uint8_t *states = image_of(by.host, lines.pool)->cache.state;
    bool lands = false;
    for (pool_lines run = lines; run.first < lines.last; run.first = run.last) {
        const pool_lines left = {lines.pool, run.first, lines.last};
        const bool absent = !states[run.first] && !in_pages(by.host);
        run.last = absent ? image_run(by.host, left, 0, NONE_PENDING)
                          : image_run(by.host, left, PRESENT | FLUSHED, ANY_PENDING);
        if (run.last == run.first) lands = complete(by, run.pool, run.last++, lingers) || lands;
        else if (absent) renew_run(by, run);
        else lands = complete_run(by, run, lingers) || lands;
    }
    return lands;
}

static void drop_lingering(mover by, int pool, int64_t line, bool hit) {
    card_cache *c = &image_of(by.host, pool)->cache;
    if ((c->state[line] & (LINGERS | DIRTY | FLUSHED)) != (LINGERS | FLUSHED)) return;
    c->state[line] = 0;
    if (!hit) dropped(by, pool, line);
    else tell(by, MOVE_DROP, pool, line, 0, 0, 0); /* the load that comes now hits the old bytes */
}

void image_drop_lingering(mover by, pool_lines lines, bool hit) {
    const uint8_t usual = PRESENT | FLUSHED | LINGERS, *state = image_of(by.host, lines.pool)->cache.state;
    for (pool_lines run = lines; run.first < lines.last; run.first = run.last) {
        image_find_stores(by, run.pool, run.first);
        run.last = run.first;
        if (state[run.first] == usual)
            run.last = image_run(by.host, (pool_lines){lines.pool, run.first, lines.last}, usual, NONE_PENDING);
        if (run.last > run.first) drop_run(by, run, hit);
        else drop_lingering(by, run.pool, run.last++, hit);
    }
}

void image_land_nt(mover by, int pool, int64_t offset, const uint8_t *bytes, int64_t nbytes, uint64_t store) {
    card_cache *c = &image_of(by.host, pool)->cache;
    const int64_t end = offset + nbytes;
    for (int64_t at = offset, next; at < end; at = next) {
        const int64_t line = at / LINE_BYTES;
        next = (line + 1) * LINE_BYTES < end ? (line + 1) * LINE_BYTES : end;
        image_find_stores(by, pool, line);
        const uint8_t state = c->state[line];
        if (c->pending[line] && !(state & DIRTY)) tell_arrival(by, MOVE_LAND, pool, line);
        if (state & DIRTY) tell_arrival(by, MOVE_WRITE_BACK, pool, line);
        decide_crash(by, pool, line);
        if (crash_now) crash_arrives(pool, line);
        cache_land_nt(c, at, bytes + (at - offset), next - at);
        if (crash_now) crash_arrives(pool, line);
        const bool lost = damage_armed(c->damage) && damage_cut_off(c->damage, by.host, pool) != DONE;
        tell(by, lost ? MOVE_LOST : MOVE_NT, pool, line, (int)(at % LINE_BYTES), (int)(next - at), store);
        rest_ends();
        if (state & PRESENT) dropped(by, pool, line);
        if (is_coherent(pool, line)) image_told(by.host, pool, at, next - at);
    }
}

static bool moves(const card_cache *c, int64_t k, enum action action) {
    int64_t line;
    if (is_coherent(c->card, k)) return false;
    switch (action) {
    case EVICT: return c->state[k] & (PRESENT | DIRTY) && !(c->state[k] & DIRTY && c->pending[k]);
    case PREFETCH: return !(c->state[k] & PRESENT) && cache_check_load(c, k, k + 1, &line) == DONE;
    default: return c->pending[k];
    }
}

bool image_nature(mover by, enum action action, int pool, int64_t line) {
    card_cache *c = &image_of(by.host, pool)->cache;
    image_find_stores(by, pool, line);
    if (!moves(c, line, action)) return false;
    const uint8_t state = c->state[line];
    const int kind = c->pending[line] ? MOVE_FETCH_POSTED : MOVE_FETCH;
    if (action == EVICT && state & DIRTY) tell_arrival(by, MOVE_WRITE_BACK, pool, line);
    if (action == LAND) tell_arrival(by, MOVE_LAND, pool, line);
    if (action == PREFETCH && kind == MOVE_FETCH) decide_crash(by, pool, line);
    cache_move_line(c, action, line);
    if (action == EVICT) dropped(by, pool, line);
    if (action != PREFETCH) return true;
    told_line(by.host, pool, line);
    tell(by, kind, pool, line, 0, 0, 0);
    return true;
}

/* Return the end of a run, from the first of these lines on, that a move leaves as it is. */
static int64_t unmoved(const card_cache *c, enum action action, pool_lines lines) {
    int64_t end = lines.first;
    while (end < lines.last && (!(c->state[end] & PRESENT) == (action == EVICT))) end++;
    return end;
}

void image_nature_run(mover by, enum action action, pool_lines lines) {
    card_cache *c = &image_of(by.host, lines.pool)->cache;
    const bool at_once = !in_pages(by.host) && together(by.host, lines.pool);
    if (action == LAND && at_once) {
        if (tell_arrivals(by, lines)) cache_land(c, lines.first, lines.last);
        return;
    }
    for (pool_lines run = lines; run.first < lines.last; run.first = run.last) {
        if (at_once && (run.last = unmoved(c, action, (pool_lines){lines.pool, run.first, lines.last})) > run.first)
            continue;
        const uint8_t state = c->state[run.first];
        run.last = lines.last;
        run.last = at_once ? image_run(by.host, run, state, NONE_PENDING) : run.first;
        if (run.last == run.first) image_nature(by, action, run.pool, run.last++);
        else if (action != EVICT) fetch_run(by, run);
        else if (state & DIRTY) evict_run(by, run);
        else drop_run(by, run, false);
    }
}

void image_crash(int host, uint64_t *random) {
    const mover by = {host, 0, BY_NATURE};
    for (int pool = 0; pool < here.area->options.pools; pool++) {
        card_cache *c = &image_of(host, pool)->cache;
        for (int64_t k = 0; k < here.area->extent[pool]; k++) {
            if (c->pending[k] && !crash_now && splitmix(random) & 1) {
                tell_arrival(by, MOVE_LAND, pool, k);
                cache_move_line(c, LAND, k);
            } else if (c->pending[k]) {
                tell(by, MOVE_LOST, pool, k, 0, LINE_BYTES, 0);
            }
            if (c->state[k] & PRESENT) tell(by, MOVE_DROP, pool, k, 0, 0, 0);
            c->state[k] = c->pending[k] = 0;
        }
    }
}

void image_mapped(int pool, int64_t first, int64_t last) {
    KEEPS_ERRNO;
    char path[2 * PROGRAM_PATH];
    card_cache *c = &image_of(here.host, pool)->cache;
    area_path(path, sizeof path, "pool-%d", pool);
    const int file = area_open(path, O_RDONLY);
    const off_t limit = last * LINE_BYTES;
    for (off_t end = first * LINE_BYTES, at;
         file >= 0 && end < limit && (at = (off_t)syscall(SYS_lseek, file, end, SEEK_DATA)) >= 0;) {
        end = (off_t)syscall(SYS_lseek, file, at, SEEK_HOLE);
        for (int64_t k = at / LINE_BYTES; k < end / LINE_BYTES && k < last; k++) {
            if (!c->state[k] && !c->pending[k]) renew(here.host, pool, k);
        }
    }
    if (file >= 0) close(file);
}

void image_open_page(int pool, int64_t page) {
    int64_t broken;
    const int64_t first = page * (4096 / LINE_BYTES);
    const mover by = {here.host, (uint16_t)program_thread_here(), BY_NATURE};
    image_touch(by, (pool_lines){pool, first, first + 4096 / LINE_BYTES}, false, &broken);
}

uint64_t image_differing(int host, int pool, int64_t line) {
    const host_image *image = image_of(host, pool);
    const uint8_t *now = image->cache.data + line * LINE_BYTES, *then = image->twin + line * LINE_BYTES;
    uint64_t bytes = 0;
    for (int k = 0; k < LINE_BYTES; k++) bytes |= (uint64_t)(now[k] != then[k]) << k;
    return bytes;
}
