/* Where operands and doorbells lie: the arithmetic of address.py and plan/layout.py. */
#ifndef CXLEMU_ADDRESS_H
#define CXLEMU_ADDRESS_H

#include "core.h"
#include "told.h"

enum { MAX_RUNS = MAX_CARDS + 2 };

/* Blocks that are contiguous on their card and strided in the operand, in which block k is at local + k * stride. */
typedef struct {
    place at;
    int64_t local, block_bytes, blocks, stride;
} card_run;

typedef struct {
    place at;
    int64_t nbytes;
} card_extent;

static inline int32_t published_count(const program *p) { return layout_published(&p->layout); }

/* Return epoch % slots, mostly without a division. */
static inline int64_t slot_of(const program *p, int64_t epoch) {
    const int64_t slot = p->slot + (epoch - p->epoch);
    return slot >= 0 && slot < p->layout.slots ? slot : epoch % p->layout.slots;
}

static inline place doorbell_place(const program *p, int32_t doorbell, int64_t epoch) {
    const int64_t slot = doorbell < published_count(p) ? slot_of(p, epoch) : 0;
    const place at = layout_doorbell(&p->layout, doorbell, slot);
    return (place){at.card, p->base + at.offset};
}

/* Return the word that this call rings a doorbell with, without its last bit, which makes the parity even. */
static inline uint64_t doorbell_bits(const program *p, int64_t epoch) {
    return (uint64_t)epoch << TAG_BITS | (p->tag & ~1u);
}

static inline uint64_t doorbell_word(const program *p, int64_t epoch) {
    const uint64_t word = doorbell_bits(p, epoch);
    return word | (uint64_t)__builtin_parityll(word);
}

/* Return where the granules of an operand in a region begin, on every card. */
static inline int64_t granules_at(const program *p, const operand *o) {
    const region *r = &p->regions[o->id];
    if (p->told && r->heap) return p->base + p->layout.heap_offset + told_granules(p->told, r, o->id);
    const int64_t slot = p->layout.data_offset + slot_of(p, p->epoch + o->seq) * p->layout.slot_card_bytes;
    return p->base + (r->heap ? p->layout.heap_offset : slot) + r->base;
}

static inline uint8_t *bytes_at(const program *p, place where) { return p->cards[where.card] + where.offset; }

/* Find AddressMap.runs: a broken first granule, one run per card, a broken last granule. Returns how many, at most MAX_RUNS. */
int address_runs(const program *p, const operand *o, int64_t nbytes, card_run *found);

/* Find AddressMap.extents, in the order of their first bytes. Returns how many, at most one per card. */
int address_extents(const program *p, const operand *o, int64_t nbytes, card_extent *found);

#endif
