/* A hash table of two hosts: each one inserts keys of its own into buckets of its own, and looks up the other's.
 * -DBUG: the value is flushed together with the key that publishes it, and may arrive after it.
 *
 *     cxlemu cc -O2 hash_table.c -o hash_table
 *     cxlemu exec --pool /dev/shm/table -- ./hash_table 0 : ./hash_table 1 */
#include "pool.h"

#ifndef KEYS
#define KEYS 12
#endif
enum { BUCKETS = 16, LINE = 64 };

typedef struct {
    volatile uint64_t key; /* 0: empty. Stored last, in a line of its own */
    char rest[LINE - 8];
    uint64_t value[LINE / 8];
} bucket;

typedef struct {
    bucket of_host[2][BUCKETS];
} table;

static void insert(table *t, int host, uint64_t key) {
    bucket *b = t->of_host[host];
    while (b->key) b++;
    for (uint64_t k = 0; k < LINE / 8; k++) b->value[k] = key * 100 + k;
#ifdef BUG
    cxl_flush(b->value, LINE);
#else
    publish(b->value, LINE);
#endif
    b->key = key;
    publish(&b->key, LINE);
}

/* The value's last word; 0: the key is not there yet. */
static uint64_t find(table *t, int host, uint64_t key) {
    for (bucket *b = t->of_host[host]; b < t->of_host[host] + BUCKETS; b++) {
        refresh(&b->key, LINE);
        if (b->key == 0) return 0;
        if (b->key != key) continue;
        refresh(b->value, LINE);
        return b->value[LINE / 8 - 1];
    }
    return 0;
}

int main(int count, char **words) {
    const int host = count == 2 && words[1][0] == '1';
    table *t = map_pool("/dev/shm/table", sizeof *t);
    for (uint64_t k = 1; k <= KEYS; k++) {
        uint64_t value;
        insert(t, host, k * 2 + (uint64_t)host);
        while (!(value = find(t, !host, k * 2 + (uint64_t)!host))) {}
        if (value != (k * 2 + (uint64_t)!host) * 100 + LINE / 8 - 1) fail("another value than was inserted");
    }
    return 0;
}
