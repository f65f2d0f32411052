#include "address.h"

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/* Return the place of byte `within` of a granule. */
static place place_of(const region *r, int64_t granules, int64_t granule, int64_t within) {
    return (place){r->first_card + (int32_t)(granule % r->cards),
                   granules + granule / r->cards * r->granularity_bytes + within};
}

int address_runs(const program *p, const operand *o, int64_t nbytes, card_run *found) {
    const region *r = &p->regions[o->id];
    const int64_t size = r->granularity_bytes, granules = granules_at(p, o), begin = r->start + o->offset,
                  end = begin + nbytes;
    int64_t first = begin / size;
    int count = 0;
    if (nbytes == 0) return 0;
    if (r->cards == 1 || first == (end - 1) / size) {
        found[0] = (card_run){place_of(r, granules, first, begin % size), 0, nbytes, 1, nbytes};
        return 1;
    }
    if (begin % size) {
        const int64_t head = size - begin % size;
        found[count++] = (card_run){place_of(r, granules, first, begin % size), 0, head, 1, head};
        first++;
    }
    const int64_t whole_end = end / size; /* the granule after the last whole one */
    for (int64_t granule = first; granule < least(whole_end, first + r->cards); granule++) {
        const int64_t blocks = (whole_end - 1 - granule) / r->cards + 1;
        found[count++] = (card_run){place_of(r, granules, granule, 0), granule * size - begin, size, blocks,
                                    size * r->cards};
    }
    if (end % size) {
        const int64_t tail = end % size;
        found[count++] = (card_run){place_of(r, granules, whole_end, 0), nbytes - tail, tail, 1, tail};
    }
    return count;
}

int address_extents(const program *p, const operand *o, int64_t nbytes, card_extent *found) {
    const region *r = &p->regions[o->id];
    const int64_t size = r->granularity_bytes, granules = granules_at(p, o), begin = r->start + o->offset,
                  end = begin + nbytes;
    int count = 0;
    if (nbytes == 0) return 0;
    const int64_t first = begin / size, last = (end - 1) / size;
    for (int64_t granule = first; granule <= last && granule < first + r->cards; granule++) {
        const place from = place_of(r, granules, granule, granule == first ? begin % size : 0);
        const int64_t last_here = last - (last - granule) % r->cards;
        const int64_t within = last_here == last ? (end - 1) % size : size - 1;
        found[count++] = (card_extent){from, place_of(r, granules, last_here, within).offset + 1 - from.offset};
    }
    return count;
}
