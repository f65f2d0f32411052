/* Work for studies/benchmarks/programs.py: POOL WHAT ROUNDS [HOST]. */
#include <cxl.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { LINE = 64, BYTES = 8 << 20, COPIED = 4096, PLACES = 16 };

typedef struct {
    volatile uint64_t key; /* 0: empty. Stored last, in a line of its own */
    char rest[LINE - 8];
    uint64_t value[LINE / 8];
} bucket;

static void publish(const volatile void *at, size_t nbytes) {
    cxl_flush((const void *)(uintptr_t)at, nbytes);
    cxl_fence();
}

/* A hash table of two hosts: each inserts a key, and waits for the other's. */
static int table(char *pool, int rounds, int host) {
    bucket *mine = (bucket *)(void *)pool + host * rounds, *theirs = (bucket *)(void *)pool + !host * rounds;
    for (int k = 0; k < rounds; k++) {
        for (int word = 0; word < LINE / 8; word++) mine[k].value[word] = (uint64_t)(k * 100 + word);
        publish(mine[k].value, LINE);
        mine[k].key = (uint64_t)k + 1;
        publish(&mine[k].key, LINE);
        do cxl_invalidate((const void *)(uintptr_t)&theirs[k].key, LINE);
        while (theirs[k].key == 0);
        cxl_invalidate(theirs[k].value, LINE);
        if (theirs[k].value[7] != (uint64_t)k * 100 + 7) return 1;
    }
    return 0;
}

/* Copies into the pool and out of it, each published. */
static int copies(char *pool, int rounds) {
    static char from[COPIED], to[COPIED];
    for (int k = 0; k < rounds; k++) {
        char *at = pool + k % PLACES * COPIED;
        memset(from, k, COPIED);
        memcpy(at, from, COPIED);
        publish(at, COPIED);
        memcpy(to, at, COPIED);
        if (memcmp(from, to, COPIED) != 0) return 1;
    }
    return 0;
}

/* A computation in private memory, whose result goes to the pool. */
static int compute(char *pool, int rounds) {
    static uint64_t numbers[1024];
    for (int k = 0; k < rounds; k++)
        for (int i = 1; i < 1024; i++) numbers[i] = (numbers[i] ^ numbers[i - 1]) * 2654435761u + (uint64_t)k;
    memcpy(pool, numbers, LINE);
    publish(pool, LINE);
    return 0;
}

int main(int count, char **words) {
    if (count < 4) return 2;
    const int file = open(words[1], O_RDWR | O_CREAT, 0600), rounds = atoi(words[3]);
    if (file < 0 || ftruncate(file, BYTES) != 0) return 2;
    char *pool = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (pool == MAP_FAILED) return 2;
    if (strcmp(words[2], "table") == 0) return count < 5 ? 2 : table(pool, rounds, words[4][0] == '1');
    return strcmp(words[2], "copies") == 0 ? copies(pool, rounds) : compute(pool, rounds);
}
