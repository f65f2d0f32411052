/* The rules, one function each. A rule looks at the history of a line when an instruction touches it. Where a store makes
 * bytes unreliable, the cell's spoil says so to later readers. A rule that is switched off always holds. */
#include "pass.h"

#include <string.h>

static const event nobody = {0, 0};

_Noreturn void pass_violated(pass *p, int rule, int detail, event at, event by, int32_t card, int64_t line) {
    p->verdict = VIOLATED;
    p->found = (finding){rule, detail, at, by, card, line};
    longjmp(p->stop, DECIDED);
}

_Noreturn void pass_undecided(pass *p, enum reason reason, event at) {
    p->verdict = UNDECIDED, p->reason = reason;
    p->found = (finding){NO_RULE, PLAIN, at, nobody, -1, 0};
    longjmp(p->stop, DECIDED);
}

static bool off(const pass *p, enum rule rule) { return p->without >> rule & 1; }
static bool inside(const cell *c, int begin, int end) { return c->begin >= begin && c->end <= end; }

/* --- what a host can see --------------------------------------------------------------------------------------- */

/* landed: a rank of the writer's host has flushed the store, and then fenced, and q knows of it. */
static bool landed(const pass *p, const stored *w, const point *q) {
    if (off(p, LANDED)) return clock_before(w->at, q);
    for (int k = 0; k < w->drains; k++)
        if (drain_is_fenced(w->by[k], q)) return true;
    return false;
}

static int not_landed(const stored *w) {
    int detail = w->nt ? NEVER_FENCED : NEVER_FLUSHED;
    for (int k = 0; k < w->drains; k++) {
        if (detail == NEVER_FLUSHED) detail = NEVER_FENCED;
        if (w->by[k]->fences) detail = NOT_TOLD;
    }
    return detail;
}

static bool same_rank(const pass *p, const stored *w, const point *q) {
    return rank_of(p, w->at.stream) == rank_of(p, q->self.stream);
}
static bool same_host(const pass *p, const stored *w, const point *q) {
    return p->host[w->at.stream] == p->host[q->self.stream];
}

/* fresh: a reader on another host sees a landed store once its own host has dropped its copy, and that drop is complete.
 * Returns the rule that fails, or NO_RULE. */
static int stale(const pass *p, const segment *s, const stored *w, const point *q, int *detail) {
    if (same_host(p, w, q) && (!w->nt || same_rank(p, w, q))) return NO_RULE;
    if (!landed(p, w, q)) {
        *detail = not_landed(w);
        return LANDED;
    }
    if (same_host(p, w, q) || off(p, FRESH)) return NO_RULE;
    *detail = NEVER_DROPPED;
    const int32_t host = p->host[q->self.stream];
    for (int k = segment_drops_of(s, host); k < s->drops && s->drop[k]->host == host; k++) {
        const drain *d = s->drop[k];
        const bool timely = landed(p, w, &d->from), complete = drain_is_fenced(d, q);
        if (timely && complete) return NO_RULE;
        const uint32_t began = p->began[(int64_t)p->call[d->rank] * p->streams + d->from.self.stream];
        if (clock_before(d->from.self, q) && d->from.self.at > began) /* a drop of this call may explain the read */
            *detail = timely ? DROP_UNFENCED : *detail == DROP_UNFENCED ? *detail : DROPPED_EARLY;
    }
    return FRESH;
}

/* --- reading --------------------------------------------------------------------------------------------------- */

/* order: the last write comes before this read in every execution. */
static void order(pass *p, const touch *a, const segment *s, const cell *c) {
    if (off(p, ORDER)) return;
    if (!c->writes) pass_violated(p, ORDER, UNWRITTEN, a->now.self, nobody, a->card, s->first);
    const stored *w = &c->write[c->writes - 1];
    if (!clock_before(w->at, &a->now)) pass_violated(p, ORDER, UNORDERED_WRITE, a->now.self, w->at, a->card, s->first);
}

void rule_check_load(pass *p, const touch *a, segment *s, int begin, int end) {
    for (cell *c = s->cell; c < s->cell + s->cells; c++) {
        if (!inside(c, begin, end)) continue;
        order(p, a, s, c);
        if (c->spoil.rule != NO_RULE)
            pass_violated(p, c->spoil.rule, PLAIN, a->now.self, c->spoil.by, a->card, s->first);
        int detail = PLAIN;
        const stored *w = c->writes ? &c->write[c->writes - 1] : NULL;
        const int rule = w ? stale(p, s, w, &a->now, &detail) : NO_RULE;
        if (rule != NO_RULE) pass_violated(p, rule, detail, a->now.self, w->at, a->card, s->first);
        cell_add_reader(p, c, a->now.self);
    }
}

/* --- storing --------------------------------------------------------------------------------------------------- */

/* order, the other way round: in every execution the readers of the old bytes have read them before this store. */
static void overwrite(pass *p, const touch *a, const segment *s, const cell *c) {
    for (int k = 0; k < c->readers && !off(p, ORDER); k++)
        if (!clock_before(c->reader[k], &a->now))
            pass_violated(p, ORDER, OVERWRITES, a->now.self, c->reader[k], a->card, s->first);
}

/* older write: an earlier store to the same bytes has reached the pool before this one; otherwise it may arrive later and
 * overwrite it. */
static int older_write(const pass *p, const stored *w, const point *q) {
    if (!clock_before(w->at, q)) return off(p, ORDER) ? NO_RULE : ORDER;
    if (off(p, OLDER_WRITE) || (same_host(p, w, q) && (!w->nt || same_rank(p, w, q)))) return NO_RULE;
    return landed(p, w, q) ? NO_RULE : OLDER_WRITE;
}

/* dirty residue and false sharing: another host's store beside these bytes takes old ones along when its line is written
 * back. */
static int residue(const pass *p, const stored *w, const point *q) {
    if (w->nt || same_host(p, w, q)) return NO_RULE;
    if (!clock_before(w->at, q)) return off(p, FALSE_SHARING) ? NO_RULE : FALSE_SHARING;
    return off(p, RESIDUE) || landed(p, w, q) ? NO_RULE : RESIDUE;
}

static spoil threat(const pass *p, const segment *s, const cell *mine, const point *q) {
    for (const cell *c = s->cell; c < s->cell + s->cells; c++)
        for (const stored *w = c->write; w < c->write + c->writes; w++) {
            const int rule = c == mine ? older_write(p, w, q) : residue(p, w, q);
            if (rule != NO_RULE) return (spoil){rule, w->at};
        }
    return (spoil){NO_RULE, nobody};
}

/* stale allocate and false sharing: this store's line, when it is written back, takes along the bytes beside the store as
 * its host last saw them. */
static void stale_allocate(pass *p, const touch *a, const segment *s, cell *c) {
    const stored *w = c->writes ? &c->write[c->writes - 1] : NULL;
    if (!w || same_host(p, w, &a->now)) return;
    int detail = PLAIN, rule = STALE_ALLOCATE;
    if (!clock_before(w->at, &a->now)) rule = FALSE_SHARING;
    else if (stale(p, s, w, &a->now, &detail) == NO_RULE) return;
    if (off(p, (enum rule)rule)) return;
    for (int k = 0; k < c->readers; k++)
        if (!clock_before(c->reader[k], &a->now))
            pass_violated(p, rule, PLAIN, c->reader[k], a->now.self, a->card, s->first);
    if (c->spoil.rule == NO_RULE) c->spoil = (spoil){rule, a->now.self};
}

/* A cached store waits for its rank's own non-temporal stores to the line: it acts as a fence for them. */
static void wait_for_nt(pass *p, const touch *a, cell *c) {
    for (stored *w = c->write; w < c->write + c->writes; w++)
        if (w->nt && same_rank(p, w, &a->now) && clock_before(w->at, &a->now)) drain_fenced(p, w->by[0], a->now.self);
}

static bool over(const pass *p, const stored *w, const point *q, bool nt) {
    return clock_before(w->at, q) && ((same_host(p, w, q) && !w->nt && !nt) || landed(p, w, q));
}

void rule_check_store(pass *p, const touch *a, segment *s, int begin, int end, bool nt) {
    for (cell *c = s->cell; c < s->cell + s->cells; c++) {
        if (!nt) wait_for_nt(p, a, c);
        if (inside(c, begin, end)) {
            overwrite(p, a, s, c);
            c->spoil = threat(p, s, c, &a->now);
        } else if (!nt) stale_allocate(p, a, s, c);
    }
    for (cell *c = s->cell; c < s->cell + s->cells; c++) {
        if (!inside(c, begin, end)) continue;
        for (int k = c->writes - 1; k >= 0; k--)
            if (over(p, &c->write[k], &a->now, nt)) cell_drop_write(c, k);
        c->readers = 0;
        cell_add_write(p, c, a->now.self, nt);
    }
}

/* --- local memory ---------------------------------------------------------------------------------------------- */

/* local: a rank's streams share its buffers, and nothing but events and doorbells orders their accesses. */
void rule_check_local_load(pass *p, const touch *a, segment *s, int begin, int end) {
    for (cell *c = s->cell; c < s->cell + s->cells; c++) {
        if (!inside(c, begin, end)) continue;
        if (c->writes && !clock_before(c->write[0].at, &a->now) && !off(p, LOCAL))
            pass_violated(p, LOCAL, UNORDERED_WRITE, a->now.self, c->write[0].at, -1, s->first);
        if (c->spoil.rule != NO_RULE) pass_violated(p, LOCAL, PLAIN, a->now.self, c->spoil.by, -1, s->first);
        cell_add_reader(p, c, a->now.self);
    }
}

void rule_check_local_store(pass *p, const touch *a, segment *s, int begin, int end) {
    for (cell *c = s->cell; c < s->cell + s->cells; c++) {
        if (!inside(c, begin, end)) continue;
        for (int k = 0; k < c->readers && !off(p, LOCAL); k++)
            if (!clock_before(c->reader[k], &a->now))
                pass_violated(p, LOCAL, OVERWRITES, a->now.self, c->reader[k], -1, s->first);
        const bool contested = c->writes && !clock_before(c->write[0].at, &a->now) && !off(p, LOCAL);
        c->spoil = contested ? (spoil){LOCAL, c->write[0].at} : (spoil){NO_RULE, nobody};
        while (c->writes) cell_drop_write(c, 0);
        c->readers = 0;
        cell_add_write(p, c, a->now.self, false);
    }
}

/* --- doorbells ------------------------------------------------------------------------------------------------- */

/* payload: a payload shows under the doorbell's old flag as well, so its readers have taken the last one before the next
 * one is stored. */
void rule_check_payload_store(pass *p, const touch *a, const bell *b, int64_t line) {
    for (int k = 0; k < b->readers && !off(p, PAYLOAD); k++)
        if (!clock_before(b->reader[k], &a->now))
            pass_violated(p, PAYLOAD, OVERWRITES, a->now.self, b->reader[k], a->card, line);
}

void rule_check_payload_load(pass *p, const touch *a, const bell *b, const ring *satisfied, int64_t line) {
    const point *told = satisfied ? &satisfied->at : &a->now;
    if (b->payload.at && !clock_before(b->payload, told) && !off(p, PAYLOAD))
        pass_violated(p, PAYLOAD, UNORDERED_WRITE, a->now.self, b->payload, a->card, line);
}

/* payload: places of arrays are those of the call, which begins with this epoch. */
void rule_check_told(pass *p, const touch *a, const bell *b, int64_t first_epoch, int64_t line) {
    if (b->told < first_epoch && !off(p, PAYLOAD))
        pass_violated(p, PAYLOAD, UNWRITTEN, a->now.self, (event){a->now.self.stream, 0}, a->card, line);
}

/* --- between calls --------------------------------------------------------------------------------------------- */

/* reuse: a rank that stores to a slot knows that all ranks are done with the round that used it before. */
void rule_check_reuse(pass *p, uint32_t stream, int64_t epoch, const program *part) {
    const int64_t last = epoch - part->layout.slots;
    if (!p->obliges || off(p, REUSE) || last <= 0 || epoch <= p->ready[stream]) return;
    const point q = clock_now(p, stream);
    for (int32_t rank = 0; rank < p->ranks; rank++) {
        const bell *b = bell_done(p, rank);
        if (b->forgotten >= last) continue;
        const ring *r = bell_first_ring(b, last);
        const event other = {(uint32_t)(rank * p->per_rank), 0};
        if (!r || !clock_before(r->at.self, &q))
            pass_violated(p, REUSE, NOT_DONE, q.self, r ? r->at.self : other, -1, epoch % part->layout.slots);
    }
    p->ready[stream] = epoch;
}

static void settled(pass *p, const point *q, int32_t card, int64_t begin, int64_t end) {
    if (begin == end) return;
    const range r = map_open_range(p, &p->cards[card], begin, end);
    for (int k = r.at; k < r.end; k++) {
        const segment *s = &p->cards[card].segment[k];
        for (const cell *c = s->cell; c < s->cell + s->cells; c++) {
            for (const event *e = c->reader; e < c->reader + c->readers; e++)
                if (!clock_before(*e, q)) pass_violated(p, EXIT, UNREAD, *e, nobody, card, s->first);
            for (const stored *w = c->write; w < c->write + c->writes; w++)
                if (!clock_before(w->at, q) || !landed(p, w, q))
                    pass_violated(p, EXIT, UNLANDED, w->at, nobody, card, s->first);
        }
    }
}

static void round_over(pass *p, const program *part, int64_t epoch, point *q) {
    for (int32_t rank = 0; rank < p->ranks; rank++) {
        const ring *r = bell_first_ring(bell_done(p, rank), epoch);
        const event last = {(uint32_t)(rank * p->per_rank), p->now[rank * p->per_rank]};
        if (!r) pass_violated(p, EXIT, NOT_DONE, last, nobody, -1, epoch % part->layout.slots);
        clock_add(p, &p->joint, &r->at);
    }
    q->known = p->joint;
    const int64_t slot = epoch % part->layout.slots,
                  begin = part->layout.data_offset + slot * part->layout.slot_card_bytes;
    for (int32_t card = 0; card < part->card_count; card++)
        settled(p, q, card, begin, begin + part->layout.slot_card_bytes);
    for (int32_t k = 0; k < published_count(part); k++) {
        const bell *b = &p->bells[slot * published_count(part) + k];
        const place at = doorbell_place(part, k, epoch);
        for (const event *e = b->reader; e < b->reader + b->readers; e++)
            if (!clock_before(*e, q)) pass_violated(p, EXIT, UNREAD, *e, nobody, at.card, at.offset / LINE_BYTES);
    }
}

/* exit: once all ranks are done with a round, its stores have landed and its loads are over. */
void rule_check_exit(pass *p, int32_t call) {
    const plan *whole = &p->plan[p->plan_of[call]];
    const program *part = &whole->part[0];
    if (!p->obliges || off(p, EXIT)) return;
    const int64_t end = p->epoch_of[call] + whole->rounds,
                  most = whole->rounds < part->layout.slots ? whole->rounds : part->layout.slots;
    for (int64_t epoch = end - most; epoch < end; epoch++) {
        point q = {NULL, {UINT32_MAX, 0}};
        clock_forget(p->joint);
        p->joint = clock_know(p->nothing);
        round_over(p, part, epoch, &q);
    }
}

/* barrier: no rank leaves before every rank came. */
void rule_check_barrier(pass *p, int32_t rank) {
    const point q = clock_now(p, (uint32_t)(rank * p->per_rank));
    for (int32_t peer = 0; peer < p->ranks && !off(p, BARRIER); peer++) {
        const uint32_t stream = (uint32_t)(peer * p->per_rank);
        const event came = {stream, p->began[(int64_t)p->call[rank] * p->streams + stream]};
        if (!came.at || !clock_before(came, &q))
            pass_violated(p, BARRIER, PLAIN, q.self, (event){stream, came.at}, -1, 0);
    }
}
