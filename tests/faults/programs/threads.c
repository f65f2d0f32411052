/* Threads of one host see each other's stores at once, through their cache, and through locks and conditions that lie
 * outside of the pool; a child process too. */
#include <cxl.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { THREADS = 3, ROUNDS = 40 };

typedef struct {
    _Atomic uint64_t counted, turn;
    uint64_t plain; /* under the lock */
    uint64_t told[THREADS];
} shared;

static shared *pool;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t turned = PTHREAD_COND_INITIALIZER;
static uint64_t order;

static void *work(void *of) {
    const uint64_t me = (uint64_t)(uintptr_t)of;
    for (uint64_t k = 0; k < ROUNDS; k++) {
        atomic_fetch_add(&pool->counted, 1);
        pthread_mutex_lock(&lock);
        pool->plain++;
        while (order % THREADS != me) pthread_cond_wait(&turned, &lock);
        order++;
        pool->told[me] = order;
        pthread_cond_broadcast(&turned);
        pthread_mutex_unlock(&lock);
        if (k % 8 == 0) usleep(100);
    }
    return NULL;
}

int main(int count, char **words) {
    pthread_t threads[THREADS];
    int status;
    if (count != 2) return 2;
    const int file = open(words[1], O_RDWR | O_CREAT, 0600);
    if (file < 0 || ftruncate(file, 4096) != 0) return 2;
    pool = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (pool == MAP_FAILED) return 2;
    for (uintptr_t k = 0; k < THREADS; k++)
        if (pthread_create(&threads[k], NULL, work, (void *)k)) return 2;
    for (int k = 0; k < THREADS; k++) pthread_join(threads[k], NULL);
    if (pool->counted != THREADS * ROUNDS || pool->plain != THREADS * ROUNDS) return 3;
    for (uint64_t k = 0; k < THREADS; k++)
        if (pool->told[k] != (ROUNDS - 1) * THREADS + k + 1) return 4;
    const pid_t child = fork();
    if (child == 0) {
        while (atomic_load(&pool->turn) == 0) {}
        atomic_fetch_add(&pool->counted, 1000);
        _exit(pool->plain == THREADS * ROUNDS ? 0 : 5);
    }
    atomic_store(&pool->turn, 1);
    if (waitpid(child, &status, 0) != child || status != 0) return 6;
    return pool->counted == THREADS * ROUNDS + 1000 ? 0 : 7;
}
