/* Allocations in two phases: a block is taken under an intent, then linked to a root, and the intent is given up. A restart
 * completes the intent, or takes it back: each block that is taken has a root, and each root a block.
 * -DBUG: that a block is taken is not flushed. */
#include "../../../examples/programs/pool.h"

enum { LINE = 64, BLOCKS = 3 };

typedef struct {
    volatile uint64_t intent; /* a block + 1; 0: none */
    char rest[LINE - 8];
    volatile uint64_t root[LINE / 8]; /* blocks + 1 */
    volatile uint64_t taken[LINE / 8];
} heap;

static void set(volatile uint64_t *word, uint64_t value) {
    *word = value;
    publish(word, 8);
}

static void allocate(heap *h, uint64_t block) {
    set(&h->intent, block + 1);
#ifdef BUG
    h->taken[block] = 1;
#else
    set(&h->taken[block], 1);
#endif
    set(&h->root[block], block + 1);
    set(&h->intent, 0);
}

int main(int count, char **words) {
    heap *h = map_pool("/dev/shm/heap", sizeof *h);
    if (count != 2 || strcmp(words[1], "recover")) {
        for (uint64_t block = 0; block < BLOCKS; block++) allocate(h, block);
        return 0;
    }
    refresh(h, sizeof *h);
    if (h->intent) {
        set(&h->taken[h->intent - 1], h->root[h->intent - 1] != 0);
        set(&h->intent, 0);
    }
    for (int k = 0; k < BLOCKS; k++)
        if ((h->root[k] != 0) != h->taken[k]) fail("a block is lost, or given out twice");
    return 0;
}
