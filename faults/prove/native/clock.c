/* What streams know of each other, as vector clocks: a stream copies its clock when it learns something new, and shares it
 * until then. */
#include "pass.h"

#include <stdlib.h>
#include <string.h>

/* Return the array with room for at least `needed` items; it may move. */
void *pass_room_for(pass *p, void *array, int *room, int needed, size_t each) {
    if (needed <= *room) return array;
    const int more = needed < 4 ? 4 : needed + needed / 2;
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

bool clock_before(event e, const point *q) {
    return e.at <= (e.stream == q->self.stream ? q->self.at : q->known->at[e.stream]);
}

point clock_now(const pass *p, uint32_t stream) { return (point){p->known[stream], {stream, p->now[stream]}}; }

knowledge *clock_know(knowledge *k) {
    k->refs++;
    return k;
}

void clock_forget(knowledge *k) {
    if (k && --k->refs == 0) free(k);
}

/* Return the stream's knowledge for a change: a copy where others share it. */
static knowledge *own(pass *p, uint32_t stream) {
    knowledge *k = p->known[stream];
    if (k->refs == 1) return k;
    const size_t size = sizeof *k + (size_t)p->streams * sizeof k->at[0];
    knowledge *copy = malloc(size);
    if (!copy) longjmp(p->stop, NO_MEMORY);
    memcpy(copy, k, size);
    copy->refs = 1;
    k->refs--;
    return p->known[stream] = copy;
}

/* A stream that learns of a step also learns of all that happened before it. */
void clock_learn(pass *p, uint32_t stream, const point *of) {
    const point here = clock_now(p, stream);
    if (clock_before(of->self, &here)) return;
    const uint32_t *restrict theirs = of->known->at;
    uint32_t *restrict mine = own(p, stream)->at;
    for (int32_t k = 0; k < p->streams; k++) mine[k] = mine[k] > theirs[k] ? mine[k] : theirs[k];
    if (mine[of->self.stream] < of->self.at) mine[of->self.stream] = of->self.at;
}

void clock_gather(pass *p, int32_t rank) {
    const uint32_t first = (uint32_t)(rank * p->per_rank), end = first + (uint32_t)p->per_rank;
    for (uint32_t s = first + 1; s < end; s++) {
        const point theirs = clock_now(p, s);
        clock_learn(p, first, &theirs);
    }
    knowledge *all = own(p, first);
    all->at[first] = p->now[first];
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
