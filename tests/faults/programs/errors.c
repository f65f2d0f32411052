/* Calls that succeed leave errno as it is, as on Linux. A program that finds it changed says so, and ends with 1. */
#define _GNU_SOURCE
#include <cxl.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BYTES = 2 << 20 };
static int changed, pair[2];
static sem_t posted;

#define KEEPS(call)                                                                                \
    do {                                                                                           \
        errno = ENOTTY;                                                                            \
        (void)!(call);                                                                             \
        if (errno != ENOTTY) changed = 1, fprintf(stderr, "%s: errno is %d\n", #call, (int)errno); \
    } while (0)

static void *helps(void *main_thread) {
    for (int k = 0; k < 3; k++) {
        usleep(1000);
        sem_post(&posted);
        usleep(1000);
        if (write(pair[1], "x", 1) != 1) abort();
        usleep(1000);
        pthread_kill(*(pthread_t *)main_thread, SIGUSR1);
    }
    return NULL;
}

int main(int count, char **words) {
    const char *path = words[count - 1];
    struct stat its;
    struct timespec far = {4000000000, 0}, soon = {1, 0};
    pthread_t helper, me = pthread_self();
    sigset_t signals;
    char byte, *pool, *other;
    int file;
    sigemptyset(&signals), sigaddset(&signals, SIGUSR1), pthread_sigmask(SIG_BLOCK, &signals, NULL);
    if (sem_init(&posted, 0, 0) || socketpair(AF_UNIX, SOCK_STREAM, 0, pair)) return 9;
    KEEPS(file = open(path, O_RDWR | O_CREAT, 0600));
    KEEPS(ftruncate(file, BYTES));
    KEEPS(lseek(file, 0, SEEK_END));
    KEEPS(fstat(file, &its));
    KEEPS(stat(path, &its));
    KEEPS(pool = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0));
    KEEPS(other = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0));
    KEEPS(other = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    KEEPS(*pool = 1);
    KEEPS((cxl_flush(pool, 1), cxl_fence(), cxl_invalidate(pool, 1), 0));
    KEEPS((memset(pool, 2, 100), cxl_flush(pool, 100), cxl_fence(), 0));
    KEEPS(msync(pool, 4096, MS_SYNC));
    KEEPS(pread(file, &byte, 1, 0));
    KEEPS(pthread_create(&helper, NULL, helps, &me));
    KEEPS(sem_wait(&posted));
    KEEPS(read(pair[0], &byte, 1));
    KEEPS(sigwaitinfo(&signals, NULL));
    KEEPS(sem_timedwait(&posted, &far));
    KEEPS(recv(pair[0], &byte, 1, 0));
    KEEPS(sigtimedwait(&signals, NULL, &soon));
    KEEPS(sem_clockwait(&posted, CLOCK_MONOTONIC, &far));
    KEEPS(poll(&(struct pollfd){.fd = pair[0], .events = POLLIN}, 1, -1));
    KEEPS(pthread_join(helper, NULL));
    const pid_t child = fork();
    if (child == 0) _exit(0);
    KEEPS(waitpid(child, NULL, 0));
    KEEPS(sched_yield());
    KEEPS(usleep(1));
    KEEPS(mremap(pool, BYTES, BYTES, MREMAP_MAYMOVE));
    KEEPS(munmap(pool, BYTES));
    KEEPS(close(file));
    return changed;
}
