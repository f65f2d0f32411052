/* What programs do around a pool, in the ways that an interposed page or signal could break: each prints one line. */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BYTES = 64 << 20, APART = 8 << 20 }; /* too large to be fetched whole */
static uint8_t *pool;
static volatile sig_atomic_t traps, faults;
static sigjmp_buf back;

static void flush(void *at) { __asm__ volatile("clwb (%0)\n sfence" ::"r"(at) : "memory"); }
static void say(const char *what, int right) { printf("%s: %s\n", what, right ? "right" : "wrong"); }
static void on_trap(int number) { traps += number == SIGTRAP; }
static void on_fault(int number) {
    faults += number == SIGSEGV;
    siglongjmp(back, 1);
}

static void system_calls(void) {
    int pipes[2], sockets[2];
    char got[8] = {0};
    if (pipe(pipes) || socketpair(AF_UNIX, SOCK_STREAM, 0, sockets)) exit(3);
    say("write to a pipe", write(pipes[1], "message", 8) == 8);
    say("read into an untouched page",
        read(pipes[0], pool + APART, 8) == 8 && !strcmp((char *)pool + APART, "message"));
    say("send from an untouched page", send(sockets[0], pool + 2 * APART, 8, 0) == 8);
    say("receive into an untouched page", recv(sockets[1], pool + 3 * APART, 8, 0) == 8 && pool[3 * APART] == 0);
    memcpy(pool + 4 * APART, "another", 8);
    say("write from a page",
        write(pipes[1], pool + 4 * APART, 8) == 8 && read(pipes[0], got, 8) == 8 && !strcmp(got, "another"));
}

static void handlers(void) {
    sigset_t all, before;
    signal(SIGTRAP, on_trap);
    signal(SIGSEGV, on_fault);
    raise(SIGTRAP);
    say("a trap of its own", traps == 1);
    if (sigsetjmp(back, 1) == 0) *(volatile int *)(uintptr_t)8 = 1;
    say("a fault of its own", faults == 1);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pool[5 * APART] = 1, flush(pool + 5 * APART);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    say("a flush with all signals blocked", traps == 1 && faults == 1 && pool[5 * APART] == 1);
    uint8_t *fixed = mmap(NULL, 4096, PROT_READ, MAP_SHARED, open(getenv("POOL"), O_RDWR), 0);
    if (sigsetjmp(back, 1) == 0) fixed[0] = 1;
    say("a store to a mapping that is only for reading", faults == 2);
    munmap(fixed, 4096);
}

static void *other_thread(void *at) {
    for (int k = 0; k < 100; k++) __atomic_fetch_add((uint64_t *)at, 1, __ATOMIC_SEQ_CST);
    flush(at);
    return NULL;
}

static void threads_and_children(void) {
    pthread_t threads[3];
    uint64_t *count = (uint64_t *)(pool + 6 * APART);
    for (int k = 0; k < 3; k++) pthread_create(&threads[k], NULL, other_thread, count);
    for (int k = 0; k < 3; k++) pthread_join(threads[k], NULL);
    say("locked instructions of three threads", *count == 300);
    const pid_t child = fork();
    if (child == 0) {
        count[8] = 7, flush(count + 8);
        _exit(pool[7 * APART] != 0);
    }
    int status = -1;
    waitpid(child, &status, 0);
    say("a child's store", status == 0 && count[8] == 7);
}

static void late(const char *library) {
    enum { STEP = 256 << 10, AROUND = 128 }; /* between libraries there is no room for copies of its instructions */
    const uintptr_t libraries = (uintptr_t)dlsym(RTLD_NEXT, "printf") / STEP * STEP;
    for (uintptr_t k = 0; k < 2 * AROUND; k++)
        mmap((void *)(libraries + (AROUND - k) * STEP), 4096, PROT_NONE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    void *loaded = dlopen(library, RTLD_NOW);
    void (*publish)(uint8_t *, uint8_t) = loaded ? (void (*)(uint8_t *, uint8_t))(uintptr_t)dlsym(loaded, "publish")
                                                 : NULL;
    if (publish) publish(pool + 64, 9);
    say("a library that is loaded late", publish != NULL);
}

int main(int argc, char **argv) {
    const int file = open(argv[1], O_RDWR | O_CREAT, 0600);
    setenv("POOL", argv[1], 1);
    if (argc > 3 && ftruncate(file, BYTES)) return 3;
    pool = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (pool == MAP_FAILED) return 3;
    if (argc == 3) { /* another host, afterwards */
        say("what the library published", pool[64] == 9);
        say("what was flushed", pool[5 * APART] == 1 && *(uint64_t *)(pool + 6 * APART) == 300);
        say("what was not flushed", pool[128] == 0);
        return 0;
    }
    pool[128] = 1;
    system_calls(), handlers(), threads_and_children(), late(argv[2]);
    say("unmapped", munmap(pool, BYTES / 2) == 0 && pool[5 * APART] == 1);
    return 0;
}
