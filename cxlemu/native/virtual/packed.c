#include "packed.h"

#include <stdlib.h>
#include <string.h>

enum {
    WORDS = sizeof(record) / 8,
    PERIOD_MAX = 8, /* records that are repeated together */
    LITERAL_MAX = 1024, /* records of a block that is not repeated */
};
_Static_assert(sizeof(record) == 8 * WORDS && WORDS <= 16, "a record is whole words, a bit for each");

typedef struct {
    int32_t period, turns;
} block_head;

typedef struct {
    uint16_t there, grows; /* a bit for each word: whether it follows, and then whether its growth follows these */
    uint32_t words; /* of the entry, with this one */
} entry_head;

_Static_assert(sizeof(block_head) == 8 && sizeof(entry_head) == 8, "heads are words");

typedef struct {
    uint64_t word[WORDS];
} words;

static words words_of(const record *i) {
    words found;
    memcpy(&found, i, sizeof found);
    return found;
}

static words growth(const record *from, const record *to) {
    words a = words_of(from), b = words_of(to);
    for (int k = 0; k < WORDS; k++) b.word[k] -= a.word[k];
    return b;
}

/* Return how often `period` records in a row are there, each growing alike; at least 1. */
static int64_t turns_of(const record *i, int64_t left, int64_t period) {
    int64_t turns = left / period < 2 ? 1 : 2;
    words by[PERIOD_MAX];
    if (turns == 1) return 1;
    for (int64_t k = 0; k < period; k++) by[k] = growth(&i[k], &i[period + k]);
    for (; turns < left / period && turns < INT32_MAX; turns++)
        for (int64_t k = 0; k < period; k++) {
            const record *its = &i[turns * period + k];
            const words here = growth(its - period, its);
            if (memcmp(&here, &by[k], sizeof here)) return turns;
        }
    return turns;
}

static int64_t *put_entry(int64_t *to, const record *i, const words *by) {
    const words its = words_of(i);
    entry_head head = {0, 0, 1};
    int64_t *at = to + 1;
    for (int k = 0; k < WORDS; k++)
        if (its.word[k]) head.there |= (uint16_t)(1 << k), memcpy(at++, &its.word[k], 8);
    for (int k = 0; by && k < WORDS; k++)
        if (by->word[k]) head.grows |= (uint16_t)(1 << k), memcpy(at++, &by->word[k], 8);
    head.words = (uint32_t)(at - to);
    memcpy(to, &head, 8);
    return at;
}

static int64_t *put_head(int64_t *to, int64_t period, int64_t turns) {
    const block_head head = {(int32_t)period, (int32_t)turns};
    memcpy(to, &head, 8);
    return to + 1;
}

int64_t *packed_make(const record *records, int64_t count, int64_t *bytes) {
    const int64_t most = 1 + 2 * WORDS + 1; /* words of a block of one record */
    int64_t room = 256, used = 0, literal = -1, literals = 0;
    int64_t *made = malloc((size_t)room * 8);
    for (int64_t k = 0; made && k < count;) {
        int64_t period = 0, turns = 1, covered = 0;
        for (int64_t p = 1; p <= PERIOD_MAX; p++) {
            const int64_t found = turns_of(&records[k], count - k, p);
            if (found > 2 && found * p > covered) period = p, turns = found, covered = found * p;
        }
        if (used + most * PERIOD_MAX > room) {
            int64_t *more = realloc(made, (size_t)(room = 2 * room + most * PERIOD_MAX) * 8);
            if (!more) free(made);
            made = more;
            if (!made) break;
        }
        int64_t *at = made + used;
        if (covered) {
            at = put_head(at, period, turns), literal = -1;
            for (int64_t its = 0; its < period; its++) {
                const words by = growth(&records[k + its], &records[k + period + its]);
                at = put_entry(at, &records[k + its], &by);
            }
        } else {
            covered = 1;
            if (literal < 0 || literals == LITERAL_MAX) literal = used, literals = 0, at++;
            put_head(made + literal, ++literals, 1);
            at = put_entry(at, &records[k], NULL);
        }
        k += covered, used = at - made;
    }
    if (!made) return NULL;
    int64_t *fitting = realloc(made,
                               (size_t)(used + 1) * 8); /* one more, so that a place at the end can be looked at */
    if (!fitting) free(made);
    else fitting[used] = 0, *bytes = 8 * (used + 1);
    return fitting;
}

record packed_record(const packed_place *its) {
    words found = {{0}};
    entry_head head;
    record i;
    memcpy(&head, its->entry, 8);
    const int64_t *from = its->entry + 1;
    for (unsigned left = head.there; left; left &= left - 1) memcpy(&found.word[__builtin_ctz(left)], from++, 8);
    for (unsigned left = its->turn ? head.grows : 0; left; left &= left - 1)
        found.word[__builtin_ctz(left)] += (uint64_t)*from++ * (uint64_t)its->turn;
    memcpy(&i, &found, sizeof i);
    return i;
}

void packed_next(packed_place *its) {
    block_head block;
    entry_head entry;
    memcpy(&block, its->block, 8);
    memcpy(&entry, its->entry, 8);
    its->entry += entry.words;
    if (++its->at < block.period) return;
    its->at = 0;
    if (++its->turn == block.turns) its->block = its->entry, its->turn = 0;
    its->entry = its->block + 1;
}
