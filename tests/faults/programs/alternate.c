/* Two hosts that answer each other until both have seen that the kernel keeps them on one processor. Then each prints on how many
 * it may run as the C library says, on how many a thread that it makes there may, and both on how many it may once it computes. */
#include <cxl.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { LINE = 64, DONE = 1 << 30 };

static int kernels(void) {
    cpu_set_t real;
    CPU_ZERO(&real);
    syscall(SYS_sched_getaffinity, 0, sizeof real, &real);
    return CPU_COUNT(&real);
}

static volatile char *pool;

static void publish(volatile uint32_t *word, uint32_t value) {
    *word = value;
    cxl_flush((void *)(uintptr_t)word, sizeof *word);
    cxl_fence();
}

static void *its(void *count) {
    pool[4 * LINE + getpid() % LINE] = 1; /* this thread takes part */
    *(int *)count = kernels();
    return NULL;
}

int main(int count, char **words) {
    if (count != 3) return 2;
    const int file = open(words[1], O_RDWR | O_CREAT, 0600), me = atoi(words[2]);
    if (file < 0 || ftruncate(file, 65536) != 0) return 2;
    pool = mmap(NULL, 65536, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (pool == MAP_FAILED) return 2;
    volatile uint32_t *mine = (volatile uint32_t *)(pool + me * LINE),
                      *theirs = (volatile uint32_t *)(pool + !me * LINE);
    uint32_t done = 0, told = 0;
    int of_thread = 0;
    pthread_t thread;
    cpu_set_t said;
    for (uint32_t round = 1; !done || !(told & DONE); round++) {
        publish(mine, round | done);
        do cxl_invalidate((void *)(uintptr_t)theirs, sizeof *theirs);
        while (((told = *theirs) & ~(uint32_t)DONE) < round);
        if (done || kernels() != 1) continue;
        done = DONE;
        if (sched_getaffinity(0, sizeof said, &said) || pthread_create(&thread, NULL, its, &of_thread)) return 2;
        pthread_join(thread, NULL);
    }
    publish(mine, 2 * (uint32_t)DONE - 1); /* the other one may still wait for a round */
    while (kernels() != CPU_COUNT(&said)) continue;
    printf("%d %d %d\n", CPU_COUNT(&said), of_thread, kernels());
    return 0;
}
