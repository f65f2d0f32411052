/* Prints on which processors each of two threads may run: as the kernel knows it, and as the C library says. A third one gives
 * itself one processor. */
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

static volatile uint64_t *pool;

static int first(const cpu_set_t *set) {
    int k = 0;
    while (!CPU_ISSET(k, set)) k++;
    return k;
}

static void tell(void) {
    cpu_set_t real, said, of_thread;
    CPU_ZERO(&real);
    pool[1] = pool[0] + 1; /* this thread takes part */
    syscall(SYS_sched_getaffinity, 0, sizeof real, &real);
    if (sched_getaffinity(0, sizeof said, &said)) return;
    if (pthread_getaffinity_np(pthread_self(), sizeof of_thread, &of_thread)) return;
    printf("%d of %d, %d, %d\n", first(&real), CPU_COUNT(&real), CPU_COUNT(&said), CPU_COUNT(&of_thread));
    fflush(stdout);
}

static void *work(void *chooses) {
    cpu_set_t one;
    CPU_ZERO(&one);
    if (sched_getaffinity(0, sizeof one, &one)) return NULL;
    const int mine = first(&one);
    CPU_ZERO(&one);
    CPU_SET(mine, &one);
    if (chooses && pthread_setaffinity_np(pthread_self(), sizeof one, &one)) return NULL;
    tell();
    return NULL;
}

int main(int count, char **words) {
    pthread_t thread;
    if (count != 2) return 2;
    const int file = open(words[1], O_RDWR | O_CREAT, 0600);
    if (file < 0 || ftruncate(file, 4096) != 0) return 2;
    pool = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (pool == MAP_FAILED) return 2;
    tell();
    for (uintptr_t chooses = 0; chooses < 2; chooses++) {
        if (pthread_create(&thread, NULL, work, (void *)chooses)) return 2;
        pthread_join(thread, NULL);
    }
    return 0;
}
