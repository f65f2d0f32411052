/* Lamport's bakery: hosts of one pool in turn, by words that one host writes each.  bakery HOST
 * -DHOSTS=3: three of them.  -DBUG: a host does not invalidate the others' numbers before it looks at them. */
#include <cxl.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#ifndef HOSTS
#define HOSTS 2
#endif

typedef struct {
    _Alignas(64) volatile uint64_t it;
} word;

typedef struct {
    word choosing[HOSTS], number[HOSTS], inside;
} bakery;

static void set(word *w, uint64_t value) {
    w->it = value;
    cxl_flush(w, sizeof *w);
    cxl_fence();
}

static uint64_t get(word *w) {
#ifndef BUG
    cxl_invalidate(w, sizeof *w);
#endif
    return w->it;
}

static void enter(bakery *b, int me) {
    uint64_t most = 0;
    set(&b->choosing[me], 1);
    for (int k = 0; k < HOSTS; k++) {
        const uint64_t its = k == me ? 0 : get(&b->number[k]);
        if (its > most) most = its;
    }
    const uint64_t mine = most + 1;
    set(&b->number[me], mine);
    set(&b->choosing[me], 0);
    for (int k = 0; k < HOSTS; k++) {
        if (k == me) continue;
        while (get(&b->choosing[k])) {}
        for (uint64_t its; (its = get(&b->number[k])) && (its < mine || (its == mine && k < me));) {}
    }
}

int main(int count, char **words) {
    const int me = count == 2 ? atoi(words[1]) : 0, file = open("/dev/shm/bakery", O_RDWR | O_CREAT, 0600);
    if (file < 0 || ftruncate(file, sizeof(bakery))) return 2;
    bakery *b = mmap(NULL, sizeof *b, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    enter(b, me);
    if (get(&b->inside)) return 1; /* two hosts are inside */
    set(&b->inside, 1);
    set(&b->inside, 0);
    set(&b->number[me], 0);
    return 0;
}
