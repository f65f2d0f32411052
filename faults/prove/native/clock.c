/* What streams know of each other, as vector clocks: a stream copies its clock when it learns something new, and shares it
 * until then. */
#include "pass.h"

#include <stdlib.h>
#include <string.h>

/* Return the array with room for at least `needed` items; it may move. */
void *pass_room_for(pass *p, void *array, int *room, int needed, size_t each) {
    if (needed <= *room) return array;
    const int more = needed + needed / 2;
    void *moved = realloc(array, (size_t)more * each);
    if (!moved) longjmp(p->stop, NO_MEMORY);
    *room = more;
    return moved;
}

void *pass_zeroed(pass *p, size_t count, size_t each) {
    void *made = calloc(count ? count : 1, each);
    if (!made) longjmp(p->stop, NO_MEMORY);
    return made;
}

static uint32_t last_known(const knowledge *k, uint32_t stream) { return k->of[stream / SHARE]->at[stream % SHARE]; }

bool clock_before(event e, const point *q) {
    return e.at <= (e.stream == q->self.stream ? q->self.at : last_known(q->known, e.stream));
}

point clock_now(const pass *p, uint32_t stream) { return (point){p->known[stream], {stream, p->now[stream]}}; }

knowledge *clock_know(knowledge *k) {
    k->refs++;
    return k;
}

static void forget_share(share *of) {
    if (--of->refs == 0) free(of);
}

void clock_forget(knowledge *k) {
    if (!k || --k->refs) return;
    for (uint32_t c = 0; c < k->shares; c++) forget_share(k->of[c]);
    free(k);
}

knowledge *clock_of_nothing(pass *p) {
    const uint32_t shares = (uint32_t)(p->streams + SHARE - 1) / SHARE;
    share *empty = pass_zeroed(p, 1, sizeof *empty);
    knowledge *k = calloc(1, sizeof *k + shares * sizeof k->of[0]);
    if (!k) free(empty), longjmp(p->stop, NO_MEMORY);
    for (; k->shares < shares; k->shares++) k->of[k->shares] = empty, empty->refs++;
    k->refs = 1;
    return k;
}

/* Return *known for a change: a copy where others share it. */
static knowledge *own(pass *p, knowledge **known) {
    knowledge *k = *known;
    if (k->refs == 1) return k;
    const size_t size = sizeof *k + k->shares * sizeof k->of[0];
    knowledge *copy = malloc(size);
    if (!copy) longjmp(p->stop, NO_MEMORY);
    memcpy(copy, k, size);
    for (uint32_t c = 0; c < k->shares; c++) k->of[c]->refs++;
    copy->refs = 1;
    k->refs--;
    return *known = copy;
}

static share *own_share(pass *p, knowledge *k, uint32_t c) {
    share *of = k->of[c];
    if (of->refs == 1) return of;
    share *copy = malloc(sizeof *copy);
    if (!copy) longjmp(p->stop, NO_MEMORY);
    *copy = *of;
    copy->refs = 1;
    of->refs--;
    return k->of[c] = copy;
}

static void know_of(pass *p, knowledge *k, event e) {
    if (last_known(k, e.stream) < e.at) own_share(p, k, e.stream / SHARE)->at[e.stream % SHARE] = e.at;
}

static void add_share(pass *p, knowledge *k, uint32_t c, share *theirs) {
    const uint32_t *mine = k->of[c]->at;
    uint32_t more = 0, less = 0; /* not bool, with which the compiler compares one step at a time */
    if (k->of[c] == theirs) return;
    for (int s = 0; s < SHARE; s++) more |= theirs->at[s] > mine[s], less |= theirs->at[s] < mine[s];
    if (!more) return;
    if (!less) {
        theirs->refs++;
        forget_share(k->of[c]);
        k->of[c] = theirs;
        return;
    }
    uint32_t *restrict ours = own_share(p, k, c)->at;
    for (int s = 0; s < SHARE; s++) ours[s] = ours[s] > theirs->at[s] ? ours[s] : theirs->at[s];
}

void clock_add(pass *p, knowledge **known, const point *of) {
    knowledge *k = own(p, known);
    for (uint32_t c = 0; c < k->shares; c++) add_share(p, k, c, of->known->of[c]);
    know_of(p, k, of->self);
}

/* A stream that learns of a step also learns of all that happened before it. */
void clock_learn(pass *p, uint32_t stream, const point *of) {
    const point here = clock_now(p, stream);
    if (!clock_before(of->self, &here)) clock_add(p, &p->known[stream], of);
}

void clock_gather(pass *p, int32_t rank) {
    const uint32_t first = (uint32_t)(rank * p->per_rank), end = first + (uint32_t)p->per_rank;
    for (uint32_t s = first + 1; s < end; s++) {
        const point theirs = clock_now(p, s);
        clock_learn(p, first, &theirs);
    }
    knowledge *all = own(p, &p->known[first]);
    know_of(p, all, (event){first, p->now[first]});
    for (uint32_t s = first + 1; s < end; s++) {
        clock_forget(p->known[s]);
        p->known[s] = clock_know(all);
    }
}

drain *drain_new(pass *p, uint32_t stream) {
    drain *d = pass_zeroed(p, 1, sizeof *d);
    d->refs = 1, d->from = clock_now(p, stream);
    clock_know(d->from.known);
    d->rank = rank_of(p, stream), d->host = p->host[stream];
    return d;
}

drain *drain_keep(drain *d) {
    d->refs++;
    return d;
}

void drain_drop(drain *d) {
    if (--d->refs) return;
    clock_forget(d->from.known);
    free(d);
}

/* Note a fence, unless one that was noted before comes before it in every execution. */
void drain_fenced(pass *p, drain *d, event by) {
    const point q = clock_now(p, by.stream);
    if (drain_is_fenced(d, &q)) return;
    if (d->fences == FENCES_MAX) pass_undecided(p, TOO_MANY_FENCES, by);
    d->fence[d->fences++] = by;
}

bool drain_is_fenced(const drain *d, const point *q) {
    for (int k = 0; k < d->fences; k++)
        if (clock_before(d->fence[k], q)) return true;
    return false;
}
