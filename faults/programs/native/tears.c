#include "tears.h"

#include "crash.h"
#include "finding.h"
#include "self.h"

enum { WORD = 8, WORDS = LINE_BYTES / WORD };

bool store_tears(int64_t offset, int64_t nbytes) { return nbytes > 8 && (nbytes != 16 || offset % 16); }

static torn_store *torn(void) { return &here.area->torn; }

void tears_note(const program_step *store, pool_lines lines) {
    enum { MOST = TORN_BYTES / LINE_BYTES };
    const uint8_t *before = image_of(store->host, store->pool)->twin + lines.first * LINE_BYTES;
    if (lines.last - lines.first > MOST) lines.last = lines.first + MOST;
    torn()->step = *store, torn()->first = lines.first, torn()->last = lines.last;
    memcpy(torn()->before, before, (size_t)(lines.last - lines.first) * LINE_BYTES);
}

void tears_forget(int thread) {
    if (torn()->step.thread == thread) torn()->last = 0;
}

/* Find the words that arrive only with the next write-back; false where all words arrive together, or another count says the same. */
static bool find_rest(const uint8_t *before, const uint8_t *after, bool last, int count, int *from, int *to) {
    int words[WORDS], all = 0;
    for (int k = 0; k < WORDS; k++)
        if (memcmp(before + k * WORD, after + k * WORD, WORD) != 0) words[all++] = k;
    if (all < 2 || (all == 2 && count > 1 && here.area->options.every)) return false;
    if (count >= all) count = all - 1;
    *from = last ? words[0] : words[count], *to = 1 + (last ? words[all - count - 1] : words[all - 1]);
    return true;
}

static void follow(const program_step *rest, int64_t line) {
    if (here.area->tear_count == TEARS) return;
    here.area->tears[here.area->tear_count++] = (program_tear){.store = *rest, .line = line, .fetched_by = -1};
}

bool tear_make(int host, int pool, int64_t line, bool last, int count) {
    const mover by = {host, torn()->step.thread, BY_NATURE};
    const pool_lines its = {pool, line, line + 1};
    uint8_t *bytes = image_of(host, pool)->cache.data + line * LINE_BYTES, before[LINE_BYTES], after[LINE_BYTES];
    program_step rest = torn()->step;
    int64_t broken;
    int from, to;
    if (rest.pool != pool || rest.host != host || line < torn()->first || line >= torn()->last) return false;
    if (!(image_of(host, pool)->cache.state[line] & DIRTY) || image_unannounced(host, pool, line)) return false;
    memcpy(before, torn()->before + (line - torn()->first) * LINE_BYTES, LINE_BYTES);
    memcpy(after, bytes, LINE_BYTES);
    if (!find_rest(before, after, last, count, &from, &to)) return false;
    memcpy(bytes + from * WORD, before + from * WORD, (size_t)(to - from) * WORD);
    image_told(host, pool, line * LINE_BYTES, LINE_BYTES);
    const bool left = image_nature(by, EVICT, pool, line);
    if (left && image_touch(by, its, true, &broken) != DONE) return true;
    memcpy(bytes, after, LINE_BYTES);
    if (left) {
        rest.number = here.area->steps, rest.offset = line * LINE_BYTES + from * WORD, rest.nbytes = (to - from) * WORD;
        if (program_watcher_now && program_watcher_now->store)
            program_watcher_now->store(&rest, before + from * WORD, after + from * WORD);
        if (crash_now) crash_stored(&rest, NULL);
        follow(&rest, line);
    }
    image_told(host, pool, line * LINE_BYTES, LINE_BYTES);
    return left;
}

/* --- who sees it ------------------------------------------------------------------------------------------------------ */

static void forget(program_tear *t) { *t = here.area->tears[--here.area->tear_count]; }

void tears_moved(const program_move *m) {
    for (program_tear *t = here.area->tears + here.area->tear_count; t-- > here.area->tears;) {
        if (t->store.pool != m->pool || t->line < m->line || t->line >= m->line + m->lines) continue;
        if (m->kind == MOVE_FETCH && !t->over && t->fetched_by < 0 && m->host != t->store.host) t->fetched_by = m->host;
        if (m->kind == MOVE_DROP && m->host == t->fetched_by) t->fetched_by = -1;
        t->over |= m->kind == MOVE_LAND || m->kind == MOVE_WRITE_BACK || m->kind == MOVE_NT;
        if (t->over && t->fetched_by < 0) forget(t);
    }
}

void load_divided(divided_load *load) {
    memcpy(load->before, image_of(here.host, load->pool)->cache.data + load->line * LINE_BYTES, LINE_BYTES);
    turn_stay_behind(self_here()->thread, 2 * STAYS_BEHIND);
}

/* Report a line that a load has met amid a copy. */
static void report(enum check_kind kind, const program_step *load, program_finding found) {
    found.kind = kind, found.rule = MANIFEST, found.times = 1;
    found.host = load->host, found.thread = load->thread, found.pool = load->pool, found.number = load->number;
    found.sites[AT_ACCESS] = load->site, found.numbers[AT_ACCESS] = load->number;
    program_report(&found);
}

void tears_load(const divided_load *load, const program_step *rest) {
    const int64_t at = load->line * LINE_BYTES;
    if (memcmp(load->before, image_of(here.host, load->pool)->cache.data + at, LINE_BYTES) == 0) return;
    program_finding found = {.offset = at, .nbytes = LINE_BYTES};
    found.other_host = (uint8_t)load->by, found.other_thread = UINT16_MAX;
    report(TORN_LOAD, rest, found);
}

static void report_store(const program_step *store, const program_step *load) {
    program_finding found = {.offset = store->offset, .nbytes = store->nbytes};
    found.other_host = store->host, found.other_thread = store->thread;
    found.sites[AT_STORE] = store->site, found.numbers[AT_STORE] = store->number;
    report(TORN, load, found);
}

void tears_loaded(const program_step *load) {
    for (program_tear *t = here.area->tears + here.area->tear_count; t-- > here.area->tears;) {
        const program_step *s = &t->store;
        if (load->host != t->fetched_by || load->pool != s->pool) continue;
        if (load->offset >= s->offset + s->nbytes || s->offset >= load->offset + load->nbytes) continue;
        report_store(s, load);
        forget(t);
    }
}
