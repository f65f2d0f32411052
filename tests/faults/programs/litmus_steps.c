/* Steps of litmus tests in C. A test's program names its words and its ranks, and includes this behind them:
 *
 *     litmus POOL HOST                 does what the ranks of a host do, each in a thread, and prints what their loads saw
 *     litmus POOL read NAME:OFFSET...  prints words of the pool */
#include <cxl.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { BYTES = 4096, RANKS = 4, EVENTS = 8 };
#define WORD(offset) ((volatile uint64_t *)(void *)(pool + (offset)))
#define CLFLUSH(word) __asm__ volatile("clflush %0" : "+m"(*(volatile char *)(word)))

typedef volatile uint64_t *word;
typedef void *rank(void *);
static char *pool;
static sem_t events[EVENTS]; /* order that is none of the pool's */

static inline void store(word to, uint64_t value) { *to = value; }
static inline void store_nt(word to, uint64_t value) { __asm__ volatile("movnti %1, %0" : "=m"(*to) : "r"(value)); }
static inline void flush(word of) { cxl_flush(of, sizeof *of); }
static inline void flush_keep(word of) { cxl_writeback(of, sizeof *of); }
static inline void fence(void) { cxl_fence(); }
static inline void invalidate(word of) { cxl_invalidate(of, sizeof *of); }
static inline void load(word from, const char *name) { printf("%s=%llu\n", name, (unsigned long long)*from); }
static inline void ring(word bell, uint64_t value) { store(bell, value), flush(bell); }
static inline void wait_for(word bell, uint64_t value) {
    do invalidate(bell);
    while (*bell < value);
}
static inline void record(int event) { sem_post(&events[event]); }
static inline void await(int event) { sem_wait(&events[event]), sem_post(&events[event]); }
static inline void crash(void) { /* a search crashes this host: it is to be here then */
    puts("crashes=1");
    fflush(stdout);
    for (;;) sched_yield();
}

/* In their place, where they promise more than the model does, or less. */
static inline void fence_loads_too(void) { atomic_thread_fence(memory_order_seq_cst); }
static inline void invalidate_alone(word of) {
    CLFLUSH(of); /* and waits for nothing else; no later load waits for it */
}
static inline void wait_alone(word bell, uint64_t value) {
    do CLFLUSH(bell);
    while (*bell < value);
}

#include TEST

static void read_word(const char *place) {
    char name[32];
    unsigned offset;
    if (sscanf(place, "%31[^:]:%u", name, &offset) != 2 || offset >= BYTES) exit(2);
    invalidate(WORD(offset));
    load(WORD(offset), name);
}

int main(int count, char **given) {
    pthread_t threads[RANKS];
    int begun = 0;
    const int file = count > 2 ? open(given[1], O_RDWR | O_CREAT, 0600) : -1;
    if (file < 0 || ftruncate(file, BYTES) != 0) return 2;
    pool = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (pool == MAP_FAILED) return 2;
    for (int k = 0; k < EVENTS; k++) sem_init(&events[k], 0, 0);
    if (strcmp(given[2], "read") == 0) {
        for (int k = 3; k < count; k++) read_word(given[k]);
        return 0;
    }
    const int host = atoi(given[2]);
    while (begun < RANKS - 1 && ranks[host][begun + 1]) {
        if (pthread_create(&threads[begun], NULL, ranks[host][begun + 1], NULL)) return 2;
        begun++;
    }
    ranks[host][0](NULL);
    while (begun) pthread_join(threads[--begun], NULL);
    return 0;
}
