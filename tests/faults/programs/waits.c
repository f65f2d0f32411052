/* Programs that make many steps in which nothing changes, and end; but compare, note, count, spin, beat, stops and calls go on for
 * ever. */
#define _GNU_SOURCE
#include <cxl.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <threads.h>
#include <time.h>
#include <unistd.h>

enum { POOL = 2 << 20, LINE = 64, ROUNDS = 30000, COMPUTED = 3000000, QUESTIONS = 1000 };

static volatile uint64_t *counted;

static volatile uint64_t *map(const char *path) {
    void *at = mmap(NULL, POOL, PROT_READ | PROT_WRITE, MAP_SHARED, open(path, O_RDWR), 0);
    if (at == MAP_FAILED) exit(4);
    return at;
}

static void publish(volatile uint64_t *word) {
    cxl_flush((const void *)(uintptr_t)word, LINE);
    cxl_fence();
}

static void refresh(volatile uint64_t *word) { cxl_invalidate((const void *)(uintptr_t)word, LINE); }

/* A loop of these has its state in private memory alone. */
static __attribute__((noinline)) uint64_t one_more(void) {
    *counted = *counted + 1;
    return *counted < ROUNDS;
}

static __attribute__((noinline)) void look(volatile uint64_t *p) { (void)*p; }

static void read_again(volatile uint64_t *p) {
    uint64_t total = 0;
    publish(p);
    for (int k = 0; k < ROUNDS; k++) total += p[k % 4];
    if (total) exit(5);
    counted = malloc(sizeof *counted);
    if (!counted) exit(6);
    for (*counted = 0; one_more();) look(p);
    free((void *)(uintptr_t)counted);
}

static void await_input(const char *path) {
    char byte;
    const int file = open(path, O_RDONLY);
    if (read(file, &byte, 1) != 1) exit(7);
}

static uint64_t computed(void) {
    volatile uint64_t value = 1;
    for (uint64_t k = 0; k < COMPUTED * UINT64_C(1000); k++) value = value * 3 + k;
    return value | 1;
}

static volatile sig_atomic_t told;
static void tell(int number) { told = number; }

/* A loop that a signal ends, which a child sends once it has stored. */
static void await_signal(volatile uint64_t *p) {
    signal(SIGUSR1, tell);
    if (fork() == 0) {
        *p = 1, publish(p);
        kill(getppid(), SIGUSR1);
        _exit(0);
    }
    while (!told) {}
    wait(NULL);
}

/* Two threads whose each state but one returns again and again: how many questions are left. */
static volatile int asked, answers = INT_MAX;
static void *answer(void *none) {
    for (int left = answers; left;)
        if (asked) left -= answers < INT_MAX, asked = 0;
    return none;
}
static void ask(int most) {
    pthread_t thread;
    answers = most;
    pthread_create(&thread, NULL, answer, NULL);
    pthread_detach(thread);
    for (int k = 0; k < QUESTIONS; k++)
        for (asked = 1; asked;) {}
}

/* Wait for what never comes, by a call. */
static int polls(void *p) {
    do refresh(p);
    while (*(volatile uint64_t *)p == 0);
    return 0;
}
static void calls(void *p, const char *call) {
    static int word, file[2];
    struct timespec far = {.tv_sec = INT_MAX};
    mtx_t lock;
    cnd_t condition;
    thrd_t thread;
    mtx_init(&lock, mtx_timed), cnd_init(&condition), mtx_lock(&lock);
    if (pipe(file)) exit(8);
    while (strcmp(call, "cnd_wait") == 0) cnd_wait(&condition, &lock);
    while (strcmp(call, "cnd_timedwait") == 0) cnd_timedwait(&condition, &lock, &far);
    while (strcmp(call, "futex") == 0) syscall(SYS_futex, &word, FUTEX_WAIT, 0, NULL, NULL, 0);
    if (strcmp(call, "mtx_timedlock") == 0) mtx_timedlock(&lock, &far);
    if (strcmp(call, "thrd_join") == 0 && thrd_create(&thread, polls, p) == 0) thrd_join(thread, NULL);
    if (strcmp(call, "poll") == 0) poll(&(struct pollfd){.fd = file[0], .events = POLLIN}, 1, -1);
    if (strcmp(call, "read") == 0 && read(file[0], &word, 1) != 1) exit(9);
    const pid_t child = strstr("waitpid", call) ? fork() : -1;
    if (child == 0) _exit(polls(p));
    if (strcmp(call, "waitpid") == 0) waitpid(child, NULL, 0);
    else wait(NULL);
}

int main(int count, char **words) {
    const char *what = words[count - 1];
    volatile uint64_t *p = map(words[1]), *other = p;
    if (count > 3 && strcmp(what, "input") != 0 && strcmp(words[2], "calls") != 0) other = map(words[2]);
    if (strcmp(what, "zeros") == 0) {
        for (uint64_t k = 0; k < ROUNDS; k++) p[k] = 0;
        cxl_flush((const void *)(uintptr_t)p, ROUNDS * sizeof *p);
        cxl_fence();
    } else if (strcmp(what, "again") == 0) {
        read_again(p);
    } else if (strcmp(what, "range") == 0) {
        for (int k = 0; k < ROUNDS / 8; k++)
            cxl_invalidate((const void *)(uintptr_t)p, 6 * LINE); /* steps in one call */
        cxl_invalidate((const void *)(uintptr_t)p, POOL);
    } else if (strcmp(what, "input") == 0) {
        await_input(words[2]);
        *p = 1, publish(p);
    } else if (strcmp(what, "late") == 0) {
        read_again(p);
        *p = 1, publish(p);
    } else if (strcmp(what, "compute") == 0) {
        *p = computed(), publish(p);
    } else if (strcmp(what, "await") == 0) {
        do refresh(p);
        while (*p == 0);
    } else if (strcmp(what, "told") == 0) {
        await_signal(p);
    } else if (strcmp(what, "asks") == 0) {
        ask(INT_MAX);
        *p = 1, publish(p);
    } else if (strcmp(what, "stops") == 0) {
        ask(2);
    } else if (strcmp(what, "keep") == 0) {
        other[OFFSET] = 7; /* is not flushed */
    } else if (strcmp(what, "compare") == 0) {
        p[0] = 5, publish(p);
        do refresh(&other[OFFSET]);
        while (p[0] == other[OFFSET] || other[OFFSET] == 0);
    } else if (strcmp(what, "note") == 0) {
        do refresh(p), p[LINE] = *p; /* keeps what it has seen in the pool, in a line of its own */
        while (*p == 0);
    } else if (count > 3 && strcmp(words[2], "calls") == 0) {
        calls((void *)(uintptr_t)p, what);
    } else if (strcmp(what, "beat") == 0) {
        for (;;) *p = 0; /* stores the same again and again, which others may await */
    } else if (strcmp(what, "spin") == 0) {
        static volatile uint64_t looks;
        for (refresh(p);;) looks = looks + 1;
    } else if (strcmp(what, "count") == 0) {
        volatile uint64_t looks = 0; /* never twice in the same state */
        do refresh(p), looks = looks + 1;
        while (*p == 0);
    }
    return 0;
}
