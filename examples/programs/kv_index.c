/* An index of a KV cache in the pool: host 0 publishes blocks of tokens and where they lie, host 1 looks them up and reads
 * them; a block is replaced when the version says so.
 * -DBUG: the reader invalidates a block when it finds it first, and not when its version has changed.
 *
 *     cxlemu cc -O2 kv_index.c -o kv_index
 *     cxlemu exec --pool /dev/shm/kv -- ./kv_index publish : ./kv_index read */
#include "pool.h"

#ifndef VERSIONS
#define BLOCKS 4
#define VERSIONS 5
#endif
enum { WORDS = 32, LINE = 64 };

typedef struct {
    volatile uint64_t version; /* the publisher's: which version of the block lies there */
    uint64_t first_word; /* in `words` */
    char rest[LINE - 16];
    volatile uint64_t taken; /* the reader's: which version it has read */
    char more[LINE - 8];
} entry;

typedef struct {
    entry entries[BLOCKS];
    uint64_t words[BLOCKS * WORDS];
} cache;

static void publish_blocks(cache *c) {
    for (uint64_t version = 1; version <= VERSIONS; version++)
        for (uint64_t k = 0; k < BLOCKS; k++) {
            entry *e = &c->entries[k];
            while (e->taken + 1 < version) refresh(&e->taken, LINE);
            uint64_t *words = c->words + k * WORDS;
            for (uint64_t i = 0; i < WORDS; i++) words[i] = version * 1000 + i;
            publish(words, WORDS * sizeof *words);
            e->first_word = k * WORDS;
            e->version = version;
            publish(e, LINE);
        }
}

static void read_blocks(cache *c) {
    for (uint64_t version = 1; version <= VERSIONS; version++)
        for (uint64_t k = 0; k < BLOCKS; k++) {
            entry *e = &c->entries[k];
            while (e->version < version) refresh(e, LINE);
            const uint64_t *words = c->words + e->first_word;
#ifdef BUG
            if (version == 1)
#endif
                refresh(words, WORDS * sizeof *words);
            for (uint64_t i = 0; i < WORDS; i++)
                if (words[i] != version * 1000 + i) fail("a block of an older version");
            e->taken = version;
            publish(&e->taken, LINE);
        }
}

int main(int count, char **words) {
    cache *c = map_pool("/dev/shm/kv", sizeof *c);
    (count == 2 && strcmp(words[1], "publish") == 0 ? publish_blocks : read_blocks)(c);
    return 0;
}
