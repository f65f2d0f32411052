/* The rules: a rule looks at what is known of a line when a step touches it, and finds which link of the chain is missing. The
 * findings' sentences are in faults/programs/findings.py. */
#include "check.h"

#include <string.h>

static check_host *host_now(const check_touch *t) { return &room_now()->host[t->step->host]; }
static uint16_t bit_of(const check_touch *t) { return (uint16_t)(1u << t->step->host); }

/* --- findings ---------------------------------------------------------------------------------------------------------------- */

static program_finding finding_at(const program_step *step, enum check_kind kind, enum check_rule rule) {
    program_finding f = {.kind = (uint16_t)kind, .rule = (uint16_t)rule, .host = step->host, .pool = step->pool};
    f.other_host = UINT8_MAX, f.thread = step->thread, f.other_thread = UINT16_MAX, f.number = step->number;
    f.offset = step->offset, f.nbytes = step->nbytes;
    f.sites[AT_ACCESS] = step->site, f.numbers[AT_ACCESS] = step->number;
    return f;
}

static void add_write(program_finding *f, const check_write *w) {
    f->other_host = w->host, f->other_thread = w->thread;
    f->sites[AT_STORE] = w->site, f->numbers[AT_STORE] = w->time;
    f->sites[AT_FLUSH] = w->flush;
    f->sites[AT_FENCE] = w->fence, f->numbers[AT_FENCE] = w->landed;
}

/* Keep a finding, one for each kind, rule, store and access: the places in between may differ from time to time. */
static void report(const program_finding *f) {
    check_room *room = room_now();
    for (uint32_t k = 0; k < room->reported; k++) {
        program_finding *known = &room->report[k];
        if (known->kind != f->kind || known->rule != f->rule || known->sites[AT_STORE] != f->sites[AT_STORE] ||
            known->sites[AT_ACCESS] != f->sites[AT_ACCESS])
            continue;
        known->times++;
        return;
    }
    if (room->reported == REPORTED) return;
    room->report[room->reported] = *f;
    room->report[room->reported++].times = 1;
}

/* Whether a finding only is a look at a flag. A host that polls a flag may see an old value although it has learned of a newer
 * one elsewhere: it looks again. A flag is a word, or the place of a load, by which some host has learned of another one. */
static bool is_look(const program_finding *f) {
    const check_room *room = room_now();
    const program_site at = f->sites[AT_ACCESS] % PROGRAM_SITES;
    if ((f->kind > INVALIDATE_UNFENCED && f->kind != INVALIDATE_OVERTAKES) || f->extra[EXTRA_STUCK]) return false;
    const check_line *line = line_at(f->pool, f->offset / PROGRAM_LINE);
    return line->tells >> f->offset % PROGRAM_LINE / WORD & 1 || (at && room->tells[at / 8] >> at % 8 & 1);
}

/* Report what was found. Where a run fails, and nothing else was found, old bytes that were looked at may be why. */
void rule_tell_all(void) {
    check_room *room = room_now();
    bool looks = program_failed();
    for (uint32_t k = 0; k < room->reported; k++) {
        if (is_look(&room->report[k])) continue;
        program_report(&room->report[k]);
        looks = looks && room->report[k].kind == DIRTY_AT_EXIT; /* as is much in a run that ends early */
    }
    for (uint32_t k = 0; looks && k < room->reported; k++)
        if (room->report[k].rule == MANIFEST) program_report(&room->report[k]);
    room->reported = 0;
}

/* --- reading ----------------------------------------------------------------------------------------------------------------- */

static bool fresh(const check_touch *t, const check_write *w) {
    if ((w->fresh | w->seen) & bit_of(t)) return true;
    const uint32_t *knew = host_now(t)->knew_when_born;
    return (w->landed && w->landed <= knew[w->host]) || (w->witnessed && w->witnessed <= knew[w->witness]);
}

/* Return which link is missing, so that a host may not see a write that it knows of; 0: it always sees it. */
static int missing(const check_touch *t, const check_write *w, const check_copy *copy, program_finding *f) {
    const check_host *h = host_now(t);
    if (is_copy(w) && copy_seen_at(w) > h->knows[w->host]) return COPY_NOT_ENDED;
    if (!known_landed(t->step->host, w)) {
        if (!(w->state & WRITE_FLUSHED)) return NOT_FLUSHED;
        f->extra[EXTRA_FLUSH_LATE] = !(w->state & WRITE_NT) && flushed_at(w) > h->knows[w->host];
        if (f->extra[EXTRA_FLUSH_LATE]) return NOT_FLUSHED;
        return w->landed ? FENCED_LATE : NOT_FENCED;
    }
    if (fresh(t, w)) return 0;
    if (!copy->dropped) return NO_INVALIDATE;
    f->sites[AT_DROP] = copy->drop_site, f->numbers[AT_DROP] = copy->dropped;
    if (w->dropping & bit_of(t)) {
        const check_thread *by = &room_now()->thread[copy->drop_thread];
        f->extra[EXTRA_SFENCE] = by->stores_fenced > copy->dropped;
        if (by->stores_fenced > copy->dropped) f->sites[AT_DROP_FENCE] = by->store_fence;
        return INVALIDATE_UNFENCED;
    }
    return !copy->loaded && copy->dropped > h->told_before[w->host] ? INVALIDATED_EARLY : NO_INVALIDATE;
}

static void tell(const check_touch *t, int word, const check_write *w, enum check_kind kind, enum check_rule rule,
                 program_finding *f) {
    const check_host *h = host_now(t);
    program_finding whole = finding_at(t->step, kind, rule);
    memcpy(whole.extra, f->extra, sizeof whole.extra);
    whole.sites[AT_DROP] = f->sites[AT_DROP], whole.sites[AT_DROP_FENCE] = f->sites[AT_DROP_FENCE];
    whole.numbers[AT_DROP] = f->numbers[AT_DROP];
    add_write(&whole, w);
    if (w->host != t->step->host) {
        whole.sites[AT_PUBLISHED] = h->published[w->host], whole.sites[AT_TOLD] = h->heard[w->host];
        whole.numbers[AT_PUBLISHED] = h->knows[w->host], whole.numbers[AT_TOLD] = h->told[w->host];
        whole.extra[EXTRA_TOLD_BY_START] = !h->published[w->host];
    }
    whole.offset = t->number * PROGRAM_LINE + word * WORD, whole.nbytes = WORD;
    report(&whole);
    EACH_WRITE(t->line, other) /* other words of the line would show the same mistake again */
    if (other->host == w->host && known(t->step->host, other)) other->seen |= bit_of(t);
}

static bool expected(const check_touch *t, int word) {
    const check_logbook *book = &room_now()->book[t->step->host];
    const check_host *h = host_now(t);
    const int64_t begin = t->number * PROGRAM_LINE + word * WORD;
    for (uint32_t k = 0; k < h->expected; k++)
        if (book->expect[k].pool == t->step->pool && book->expect[k].begin < begin + WORD &&
            book->expect[k].end > begin)
            return true;
    return false;
}

/* Return the newest write to any of these bytes that the host knows of. */
static check_write *newest_known(const check_touch *t, uint64_t bytes) {
    check_write *newest = NULL;
    EACH_WRITE(t->line, w)
    if (written(w) & bytes && known(t->step->host, w) && (!newest || w->time > newest->time)) newest = w;
    return newest;
}

/* Note that a host has seen this write, and with it the same host's earlier stores to the line: a line comes from the pool as a
 * whole. */
static void sees(const check_touch *t, int word, const check_write *w) {
    know_learn(t->step->host, w, (uint16_t)t->step->site, (uint32_t)t->step->number, t->step->what == LOAD_PERHAPS);
    room_now()->thread[t->step->thread].told = (uint32_t)t->step->number;
    t->line->tells |= (uint8_t)(1u << word);
    room_now()->tells[t->step->site % PROGRAM_SITES / 8] |= (uint8_t)(1u << t->step->site % 8);
    EACH_WRITE(t->line, its) {
        if (its->host != w->host || its->time > w->time) continue;
        if (its != w && is_copy(its) && copy_seen_at(its) > w->time) continue; /* it may come later */
        if (its == w && w->state & WRITE_LOCKED) its->state |= WRITE_TELLS;
        its->seen |= bit_of(t);
        if (!its->witnessed) its->witnessed = (uint32_t)t->step->number, its->witness = t->step->host & 15U;
    }
}

static void load_word(const check_touch *t, int word, check_copy *copy, const uint8_t *line_bytes) {
    const uint64_t bytes = touched_bytes(t) & bytes_of_word(word);
    check_write *got = line_holds(t->line, line_write(t->line, held(copy->cached, word)), bytes);
    check_write *newest = newest_known(t, bytes);
    program_finding f = {0};
    if (newest && is_open(t->step, newest)) {
        if (!expected(t, word)) tell(t, word, newest, COPY_NOT_ENDED, got == newest ? PREDICTED : MANIFEST, &f);
        return;
    }
    if (newest && newest->host == t->step->host && newest->state & WRITE_NT && !newest->landed)
        return; /* its own store, which no other thread has seen yet */
    if (got && got->host != t->step->host && !known(t->step->host, got)) {
        sees(t, word, got);
        return;
    }
    if (!newest || expected(t, word)) return;
    const bool stale = got ? got->time < newest->time : true;
    /* A stale version with the right bytes does no harm in this run. */
    const bool wrong = stale && !(line_bytes && hash_of(line_bytes + word * WORD) == newest->hash[word]);
    if (newest->host == t->step->host) {
        if (wrong && !(newest->seen & bit_of(t))) tell(t, word, newest, LOST_UPDATE, MANIFEST, &f);
        return;
    }
    if ((newest->seen & bit_of(t) && !stale) || !known_for_sure(t->step->host, newest)) return;
    int kind = missing(t, newest, copy, &f);
    if (!kind && t->line->overtakes == copy->host && !(newest->seen & bit_of(t))) {
        kind = INVALIDATE_OVERTAKES;
        f.sites[AT_DROP] = copy->drop_site, f.numbers[AT_DROP] = copy->dropped;
    }
    if (kind) tell(t, word, newest, (enum check_kind)kind, wrong ? MANIFEST : PREDICTED, &f);
    else if (wrong && !(newest->seen & bit_of(t))) tell(t, word, newest, LOST_UPDATE, MANIFEST, &f);
    newest->seen |= bit_of(t);
}

void rule_hear(const check_touch *t, unsigned words) {
    for (int word = 0; word < LINE_WORDS; word++) {
        const uint64_t bytes = touched_bytes(t) & bytes_of_word(word);
        const check_write *got = line_holds(t->line, line_write(t->line, held(t->line->pool, word)), bytes);
        if (!got || !(words >> word & 1)) continue;
        const bool perhaps = t->step->what == LOAD_PERHAPS;
        if (perhaps ? !known(t->step->host, got) : !known_for_sure(t->step->host, got)) sees(t, word, got);
    }
}

void rule_load_words(const check_touch *t, unsigned words, check_copy *copy, const uint8_t *line_bytes) {
    const check_write *last = line_last(t->line);
    complete_drop(t->line, copy);
    for (int word = 0; word < LINE_WORDS; word++) {
        if (!(words >> word & 1)) continue;
        const bool is_last = last && line_write(t->line, held(copy->cached, word)) == last;
        const bool covered = is_last && !(touched_bytes(t) & bytes_of_word(word) & ~written(last));
        if (!(covered && has_seen(t->step, last))) load_word(t, word, copy, line_bytes);
    }
}

/* --- storing ----------------------------------------------------------------------------------------------------------------- */

static void tell_store(const check_touch *t, const check_write *w, enum check_kind kind, enum check_rule rule) {
    program_finding f = finding_at(t->step, kind, rule);
    add_write(&f, w);
    f.offset = t->number * PROGRAM_LINE, f.nbytes = PROGRAM_LINE;
    report(&f);
}

/* Whether two hosts change one word by locked instructions, which are atomic only within a host. Where other words have told of the
 * first one, the two are in order. */
static bool locked_by_two(const check_touch *t, const check_write *w, unsigned words) {
    if (!(w->words & words)) return false;
    if (!known(t->step->host, w)) return t->step->locked || w->state & WRITE_LOCKED;
    return t->step->locked && w->state & WRITE_TELLS;
}

void rule_store_beside(const check_touch *t, unsigned words) {
    const bool nt = t->step->kind == STEP_NT_STORE;
    EACH_WRITE(t->line, w) {
        const bool beside = !(w->words & words), their_nt = w->state & WRITE_NT;
        if (w->host == t->step->host && is_open(t->step, w) && !beside) {
            tell_store(t, w, COPY_NOT_ENDED, PREDICTED);
            return;
        }
        if (w->host == t->step->host || (beside && their_nt && nt))
            continue; /* non-temporal stores carry no bytes but their own */
        if (locked_by_two(t, w, words)) tell_store(t, w, LOCKED, MANIFEST);
        else if (!known(t->step->host, w)) tell_store(t, w, TWO_WRITERS, PREDICTED);
        else if (known_landed(t->step->host, w) || (beside && their_nt)) continue;
        else tell_store(t, w, beside ? RESIDUE : OLDER_WRITE, PREDICTED);
        return;
    }
}

/* Whether a host knows of another one's write, which is in the pool, and may still have older bytes of it. Of a write that is not
 * there, rule_store has reported. */
static bool may_lack(const check_touch *t, const check_write *w) {
    const int host = t->step->host;
    return w->host != host && known(host, w) && known_landed(host, w) && !fresh(t, w);
}

/* A dirty line is flushed: it takes along the bytes beside the stores as this host had them, which may be old. */
void rule_flush_beside(const check_touch *t) {
    check_copy *copy = line_copy(t->line, t->step->host);
    check_write *last = NULL;
    bool lacks = false;
    complete_drop(t->line, copy);
    EACH_WRITE(t->line, w) {
        if (w->host == t->step->host && !(w->state & WRITE_LEFT) && (!last || w->time > last->time)) last = w;
        lacks = lacks || may_lack(t, w);
    }
    if (!last || !lacks) return;
    for (int word = 0; word < LINE_WORDS; word++) {
        check_write *rest = newest_known(t, bytes_of_word(word));
        if (!rest || !may_lack(t, rest) || rest->time > last->time) continue;
        const check_write *got = line_write(t->line, held(copy->cached, word));
        program_finding f = finding_at(t->step, STALE_ALLOCATE, got == rest ? PREDICTED : MANIFEST);
        add_write(&f, rest);
        f.sites[AT_ACCESS] = last->site, f.numbers[AT_ACCESS] = last->time;
        f.offset = t->number * PROGRAM_LINE + word * WORD, f.nbytes = WORD;
        report(&f);
        rest->seen |= bit_of(t);
        return;
    }
}

/* --- single steps ------------------------------------------------------------------------------------------------------------ */

void rule_msync(const check_touch *t) {
    EACH_WRITE(t->line, w) {
        if (w->host != t->step->host || w->state & (WRITE_FLUSHED | WRITE_NT)) continue;
        program_finding f = finding_at(t->step, MSYNC, PREDICTED);
        add_write(&f, w);
        f.offset = t->number * PROGRAM_LINE, f.nbytes = PROGRAM_LINE;
        report(&f);
        return;
    }
}

void rule_outside(const program_step *step) {
    program_finding f = finding_at(step, OUTSIDE, MANIFEST);
    report(&f);
}

/* Report that nothing was judged from some step on: such a run must not pass for one without mistakes. */
void rule_out_of_room(void) {
    const program_step nowhere = {.pool = UINT8_MAX};
    const program_finding f = finding_at(&nowhere, OUT_OF_ROOM, MANIFEST);
    report(&f);
}

/* A run is stuck: report a thread that loads the same old version again and again, long after the new one was stored, as only
 * an instruction that is missing would bring the new one. */
void rule_stuck(int thread, int load) {
    enum { AGAIN_AND_AGAIN = 16, LONG_AGO = 1000 };
    const check_thread *me = &room_now()->thread[thread];
    const int pool = me->load[load].pool;
    const int64_t number = me->load[load].line;
    program_step step = {.host = me->host, .pool = (uint8_t)pool, .thread = (uint16_t)thread};
    step.site = me->load[load].site;
    const check_touch t = {&step, line_at(pool, number), number, false, false};
    const check_copy *copy = line_copy(t.line, me->host);
    const check_thread *dropped_by = &room_now()->thread[copy->drop_thread];
    for (int word = 0; me->load[load].times >= AGAIN_AND_AGAIN && word < LINE_WORDS; word++) {
        if (!(me->load[load].words >> word & 1)) continue;
        const check_write *newest = line_newest(t.line, word, me->host);
        const check_write *got = line_write(t.line, held(copy->cached, word));
        const bool arrived = newest && line_write(t.line, held(t.line->pool, word)) == newest;
        if (!newest || (got && got->time >= newest->time) || (arrived && !copy->present)) continue;
        const uint32_t then = newest->landed ? newest->landed : newest->time;
        if (me->load[load].time < then + (room_now()->stuck ? 0 : LONG_AGO))
            continue; /* it has not loaded it since then; in a run that was given up, the writer may be about to flush */
        program_finding f = finding_at(&step, NO_INVALIDATE, MANIFEST);
        if (!(newest->state & WRITE_FLUSHED) && !arrived) f.kind = NOT_FLUSHED;
        else if (!newest->landed && !arrived) f.kind = NOT_FENCED;
        else if (!arrived) f.kind = LOST_UPDATE; /* it has been in the pool, and another host's write-back undid it */
        else if (copy->dropped && dropped_by->all_fenced <= copy->dropped) f.kind = INVALIDATE_UNFENCED;
        f.extra[EXTRA_SFENCE] = f.kind == INVALIDATE_UNFENCED && dropped_by->stores_fenced > copy->dropped;
        add_write(&f, newest);
        if (copy->dropped) f.sites[AT_DROP] = copy->drop_site, f.numbers[AT_DROP] = copy->dropped;
        f.offset = number * PROGRAM_LINE + word * WORD, f.nbytes = WORD;
        f.extra[EXTRA_STUCK] = room_now()->stuck ? FOR_EVER : SO_FAR;
        report(&f);
        return;
    }
}

void rule_dirty_at_exit(int pool, int64_t number, check_line *line) {
    EACH_WRITE(line, w) {
        bool newest = false;
        for (int word = 0; word < LINE_WORDS; word++)
            newest = newest || (w->words >> word & 1 && line_newest(line, word, -1) == w);
        if (!newest || w->state & (WRITE_FLUSHED | WRITE_NT) || w->time < room_now()->host[w->host].crashed) continue;
        const program_step step = {.host = w->host, .pool = (uint8_t)pool, .thread = w->thread};
        program_finding f = finding_at(&step, DIRTY_AT_EXIT, MANIFEST);
        add_write(&f, w);
        f.offset = number * PROGRAM_LINE, f.nbytes = PROGRAM_LINE;
        report(&f);
    }
}
