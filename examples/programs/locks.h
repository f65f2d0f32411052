/* Locks of two to four hosts without atomic operations, each word in a line of its own. */
#include "words.h"

enum { HOSTS_MOST = 4 };

/* --- Peterson's lock (1981), where each side has a turn of its own (Kessels 1982), so no two hosts store to one line --------- */

typedef struct {
    word wants[2], turn[2];
} duel;

typedef struct {
    duel root, leaves[HOSTS_MOST / 2]; /* three or four hosts meet in pairs first */
} peterson;

static inline void duel_begin(duel *d, int side) {
#ifndef BROKEN_LOCK
    set(&d->wants[side], 1);
#endif
    const uint64_t mine = get(&d->turn[!side]) ^ (uint64_t)side;
    set(&d->turn[side], mine);
#ifdef BROKEN_LOCK
    set(&d->wants[side], 1);
#endif
    while (get(&d->wants[!side]) && (get(&d->turn[!side]) ^ (uint64_t)side) == mine) {}
}

static inline void peterson_lock(peterson *p, int me, int hosts) {
    if (hosts > 2) duel_begin(&p->leaves[me / 2], me % 2);
    duel_begin(&p->root, hosts > 2 ? me / 2 : me);
}

static inline void peterson_unlock(peterson *p, int me, int hosts) {
    set(&p->root.wants[hosts > 2 ? me / 2 : me], 0);
    if (hosts > 2) set(&p->leaves[me / 2].wants[me % 2], 0);
}

/* --- Lamport's bakery (1974): whoever comes draws a number above all others, and the lowest goes first ---------------------- */

typedef struct {
    word draws[HOSTS_MOST], number[HOSTS_MOST];
} bakery;

static inline void bakery_lock(bakery *b, int me, int hosts) {
    uint64_t most = 0;
    set(&b->draws[me], 1);
    for (int k = 0; k < hosts; k++) {
        const uint64_t its = k == me ? 0 : get(&b->number[k]);
        if (its > most) most = its;
    }
    const uint64_t mine = most + 1;
    set(&b->number[me], mine);
    set(&b->draws[me], 0);
    for (int k = 0; k < hosts; k++) {
        if (k == me) continue;
#ifndef BROKEN_LOCK
        while (get(&b->draws[k])) {}
#endif
        for (uint64_t its; (its = get(&b->number[k])) && (its < mine || (its == mine && k < me));) {}
    }
}

static inline void bakery_unlock(bakery *b, int me) { set(&b->number[me], 0); }
