#include "told.h"

#include <stdlib.h>

enum { OPERANDS = 5 };

/* Return the array that an operand is a part of; NULL for one in a buffer or a slot. */
static const berth *array_of(const program *p, const operand *o) {
    return o->kind == REGION && p->regions[o->id].heap ? &p->told->berths[o->id] : NULL;
}

int32_t told_lacks(const program *p, const record *r) {
    const operand *const all[OPERANDS] = {&r->dst, &r->dst2, &r->a, &r->b, &r->c};
    for (int k = 0; k < OPERANDS; k++) {
        const berth *const of = array_of(p, all[k]);
        if (of && p->told->at[of->owner][of->buffer] == NO_PLACE) return (int32_t)of->owner;
    }
    return NO_PLACE;
}

static bool lies_in_strip(const struct told_places *its, int64_t at, int64_t nbytes) {
    return at >= 0 && nbytes <= its->strip_bytes && at <= its->strip_bytes - nbytes;
}

bool told_learn(const struct told_places *its, int32_t owner, const uint8_t *words, int64_t *wrong) {
    int64_t places[TOLD_BUFFERS];
    memcpy(places, words, sizeof places);
    for (int b = 0; b < TOLD_BUFFERS && owner != its->own; b++) {
        const int64_t need = its->need[owner][b];
        its->at[owner][b] = NO_PLACE;
        if (!need) continue;
        if (!lies_in_strip(its, places[b], need)) {
            *wrong = places[b];
            return false;
        }
        its->at[owner][b] = places[b];
    }
    return true;
}

void told_forget(const struct told_places *its) {
    for (int32_t rank = 0; rank < its->ranks; rank++)
        for (int b = 0; b < TOLD_BUFFERS; b++)
            if (rank != its->own) its->at[rank][b] = NO_PLACE;
}

static bool tables_fit(const program *p) {
    const struct told_places *const its = p->told;
    const int64_t most = (int64_t)1 << 48;
    if (its->ranks != p->layout.ranks || its->own < 0 || its->own >= its->ranks || p->buffer_count < TOLD_BUFFERS)
        return false;
    if (its->strip_bytes < 0 || its->strip_bytes > p->heap_bytes) return false;
    for (int32_t rank = 0; rank < its->ranks; rank++)
        if (its->strips[rank] < 0 || its->strips[rank] > p->heap_bytes - its->strip_bytes) return false;
    for (int32_t k = 0; k < p->region_count; k++) {
        const region *const r = &p->regions[k];
        const berth *const of = &its->berths[k];
        if (!r->heap) continue;
        if (r->cards != 1 || of->owner < 0 || of->owner >= its->ranks || of->buffer < 0 || of->buffer >= TOLD_BUFFERS)
            return false;
        if (of->offset < 0 || of->offset > most) return false;
    }
    return true;
}

bool told_check(const program *p) {
    const struct told_places *const its = p->told;
    if (!tables_fit(p)) return false;
    for (int32_t s = 0; s < p->stream_count; s++)
        for (int64_t k = 0; k < p->lengths[s]; k++) {
            const record *const r = &p->records[s][k];
            const operand *const all[OPERANDS] = {&r->dst, &r->dst2, &r->a, &r->b, &r->c};
            for (int o = 0; o < OPERANDS && r->op != COMPUTE; o++) {
                const berth *const of = array_of(p, all[o]);
                if (!of) continue;
                int64_t *const need = &its->need[of->owner][of->buffer];
                const int64_t end = of->offset + p->regions[all[o]->id].nbytes;
                if (*need < end) *need = end;
            }
        }
    for (int b = 0; b < TOLD_BUFFERS; b++) {
        const int64_t need = its->need[its->own][b];
        if (need && !lies_in_strip(its, its->at[its->own][b], need)) return false;
    }
    return true;
}

static void *copy_of(const void *from, size_t nbytes) {
    void *made = malloc(nbytes + !nbytes);
    return made ? memcpy(made, from, nbytes) : NULL;
}

struct told_places *told_new(int32_t ranks, int32_t own, int64_t strip_bytes, const int64_t own_at[TOLD_BUFFERS],
                             const int64_t *strips, const berth *berths, int64_t regions) {
    struct told_places *const its = calloc(1, sizeof *its);
    if (!its) return NULL;
    its->ranks = ranks, its->own = own, its->strip_bytes = strip_bytes;
    its->strips = copy_of(strips, (size_t)ranks * sizeof *strips);
    its->berths = copy_of(berths, (size_t)regions * sizeof *berths);
    its->at = calloc((size_t)ranks + 1, sizeof *its->at);
    its->need = calloc((size_t)ranks + 1, sizeof *its->need);
    if (!its->strips || !its->berths || !its->at || !its->need) {
        told_free(its);
        return NULL;
    }
    told_forget(its);
    if (own >= 0 && own < ranks) memcpy(its->at[own], own_at, sizeof its->at[own]);
    return its;
}

void told_free(struct told_places *its) {
    if (!its) return;
    free((void *)its->strips), free((void *)its->berths), free(its->at), free(its->need);
    free(its);
}
