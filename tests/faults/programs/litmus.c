/* One host's part of a litmus test, as real accesses: litmus POOL STEP..., where a step is OPERATION:OFFSET[:VALUE] and a
 * lone / begins the steps of the next thread. It prints what each load saw. */
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define LINE(instruction, at) __asm__ volatile(instruction " %0" : "+m"(*(volatile char *)(at)))
enum { THREADS = 4, EVENTS = 8, WORDS = 8, LOOKS_UNTIL_ALL_HAS_ARRIVED = 8000 };

static char *pool;
static char **words;
static _Atomic int
    recorded[EVENTS]; /* order that is none of the pool's: a store that released it would be a fence there */

static int takes_errors;
static _Thread_local sigjmp_buf before;
static const volatile size_t line_bytes = 64; /* so that the copy of a line is a call */

static void on_error(int number) { siglongjmp(before, number); }

static void drop(volatile void *at) {
    LINE("clflushopt", at);
    __asm__ volatile("mfence" : : : "memory");
}

/* Nature pays what it owes when nobody gets on. */
static void wait_for_what_is_posted(volatile uint64_t *word) {
    for (int k = 0; k < LOOKS_UNTIL_ALL_HAS_ARRIVED; k++) {
        LINE("clflush", word);
        (void)*word;
    }
}

/* With -DLOOKS=N a thread gives up at its N-th look in vain, in place of waiting for ever. */
static int goes_on(int number) {
#ifdef LOOKS
    static _Thread_local int looks[EVENTS];
    if (++looks[number % EVENTS] == LOOKS) {
        puts("=vain");
        exit(0);
    }
#else
    (void)number;
#endif
    return 1;
}

static int step(int number) {
    char operation;
    unsigned at = 0, value = 0;
    if (sscanf(words[number], "%c:%u:%u", &operation, &at, &value) < 1 || at > 4088) return 2;
    volatile uint64_t *word = (volatile uint64_t *)(void *)(pool + at);
    if (takes_errors && sigsetjmp(before, 1)) {
        printf("%d=error\n", number);
        return 0;
    }
    switch (operation) {
    case 'e': /* from here on errors of the memory are taken as what was seen */
        takes_errors = 1;
        signal(SIGBUS, on_error);
        break;
    case 's': *word = value; break;
    case 'o': {
        uint64_t each[WORDS] = {value, value, value, value, value, value, value, value};
        memcpy(pool + at, each, line_bytes);
        break;
    }
    case 'n': __asm__ volatile("movnti %1, %0" : "=m"(*word) : "r"((uint64_t)value)); break;
    case 'f': LINE("clflushopt", word); break;
    case 'k': LINE("clwb", word); break;
    case 'x': /* also for what this host has flushed to load it again, which takes more than sfence */
        __asm__ volatile("mfence" : : : "memory");
        break;
    case 'i': drop(word); break;
    case 'l': printf("%d=%llu\n", number, (unsigned long long)*word); break;
    case 'I': /* waits for this line only, and orders no later load */ LINE("clflush", word); break;
    case 'G': /* as lines.c has it where a processor can: not even in order with this thread's other signals */
        *word = value;
        LINE("clflushopt", word);
        break;
    case 'g': /* clflush takes this line, and waits for no other one */
        *word = value;
        LINE("clflush", word);
        break;
    case 'w':
        do LINE("clflush", word);
        while (*word < value && goes_on(number));
        break;
    case 'z':
        do LINE("clflush", word);
        while (*word && goes_on(number));
        break;
    case 'y': /* for this line or the next one */
        do drop(word), drop(word + WORDS);
        while (*word < value && word[WORDS] < value && goes_on(number));
        break;
    case 'v': /* asleep between two looks */
        for (drop(word); *word < value && goes_on(number); drop(word)) usleep(1);
        break;
    case 'r': atomic_store_explicit(&recorded[at % EVENTS], 1, memory_order_release); break;
    case 'a':
        while (!atomic_load_explicit(&recorded[at % EVENTS], memory_order_acquire)) sched_yield();
        break;
    case 'c': /* the run crashes this host at a step of its choice: it is to be here then */
        puts("crashes");
        fflush(stdout);
        for (;;) sched_yield();
    case 'p': wait_for_what_is_posted(word); break;
    default: return 2;
    }
    return 0;
}

static void *steps(void *first) {
    for (int k = (int)(intptr_t)first; words[k] && strcmp(words[k], "/") != 0; k++)
        if (step(k)) exit(2);
    return NULL;
}

int main(int count, char **given) {
    pthread_t thread[THREADS];
    int threads = 0;
    const int file = count > 1 ? open(given[1], O_RDWR | O_CREAT, 0600) : -1;
    if (file < 0 || ftruncate(file, 4096) != 0) return 2;
    words = given;
    pool = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (pool == MAP_FAILED) return 2;
    for (int k = 2; k < count && threads < THREADS; k++)
        if (strcmp(words[k], "/") == 0 && pthread_create(&thread[threads++], NULL, steps, (void *)(intptr_t)(k + 1)))
            return 2;
    steps((void *)(intptr_t)2);
    while (threads) pthread_join(thread[--threads], NULL);
    return 0;
}
