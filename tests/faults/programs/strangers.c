/* What programs of others do around a pool: `strangers POOL WAY w` publishes, `strangers POOL WAY r` reads. With `bug` behind the way,
 * nothing is flushed before it is published. */
#define _GNU_SOURCE
#include <cxl.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <threads.h>
#include <time.h>
#include <unistd.h>

enum { PAGE = 4096, SIZE = 64 * PAGE, TEXT = 200 };
static const char *path, *program;
static volatile uint64_t *ready;
static char *data, text[TEXT];
static int file, bug;

static void check(int right, int line) {
    if (right) return;
    fprintf(stderr, "line %d\n", line);
    exit(3);
}
#define CHECK(condition) check(condition, __LINE__)

static void flush(const void *at, size_t nbytes) {
    if (!bug) cxl_flush(at, nbytes);
    cxl_fence();
}

static void tell(uint64_t value) {
    *ready = value;
    cxl_flush((void *)(uintptr_t)ready, 8);
    cxl_fence();
}

static void await(uint64_t value) {
    do cxl_invalidate((void *)(uintptr_t)ready, 8);
    while (*ready < value);
    cxl_invalidate(data, SIZE - PAGE);
}

static char *mapped(void *at, size_t nbytes, off_t offset) {
    char *found = mmap(at, nbytes, PROT_READ | PROT_WRITE, MAP_SHARED | (at ? MAP_FIXED : 0), file, offset);
    CHECK(found != MAP_FAILED);
    return found;
}

static char *private_pages(void *at, size_t nbytes) {
    char *found = mmap(at, nbytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | (at ? MAP_FIXED : 0), -1, 0);
    CHECK(found != MAP_FAILED);
    return found;
}

static void usual_read(void) {
    char got[TEXT];
    await(1);
    memcpy(got, data, TEXT);
    CHECK(memcmp(got, text, TEXT) == 0 || bug);
}

/* A ring that is mapped twice, side by side. */
static char *ring(void) {
    char *room = private_pages(NULL, 4 * PAGE);
    mapped(room, 2 * PAGE, PAGE), mapped(room + 2 * PAGE, 2 * PAGE, PAGE);
    return room + 2 * PAGE - TEXT / 2;
}
static void seam_write(void) {
    char *at = ring();
    memset(at, 1, TEXT);
    memcpy(at, text, TEXT); /* the store */
    flush(at, TEXT);
    tell(1);
}
static void seam_read(void) {
    const char *at = ring();
    char got[TEXT];
    await(1);
    CHECK(memcmp(at, text, TEXT) == 0 || bug);
    memcpy(got, at, TEXT);
    CHECK(memcmp(got, text, TEXT) == 0 || bug);
    CHECK(memcmp(data, text + TEXT / 2, TEXT / 2) == 0 || bug);
}

/* A mapping that is no whole page, of which private memory takes the place; and one in the middle of a reservation. */
static void unmapped_write(void) {
    char *small = mapped(NULL, 5000, PAGE), *room = private_pages(NULL, 8 * PAGE);
    memcpy(small, text, TEXT); /* the store */
    flush(small, TEXT);
    munmap(small, 5000), private_pages(small, 2 * PAGE);
    mapped(room + 2 * PAGE, PAGE, PAGE);
    munmap(room, 8 * PAGE), private_pages(room, 8 * PAGE);
    volatile size_t some = 100; /* so that no compiler moves the bytes by itself */
    memcpy(small + 6000, text + 1, some), memcpy(room + 2 * PAGE, text + 1, some);
    CHECK(small[6000] == text[1] && room[2 * PAGE] == text[1] && memcmp(data, text, TEXT) == 0);
    tell(1);
}

static void remapped_write(void) {
    char *moved = mapped(NULL, PAGE, PAGE), *beside = private_pages(moved + PAGE, PAGE);
    moved = mremap(moved, PAGE, 4 * PAGE, MREMAP_MAYMOVE);
    CHECK(moved != MAP_FAILED && moved + PAGE != beside);
    memcpy(moved, text, TEXT); /* the store */
    flush(moved, TEXT);
    tell(1);
}

static void locked_write(void) {
    CHECK(mlock(data, PAGE) == 0);
    memcpy(data, text, TEXT); /* the store */
    flush(data, TEXT);
    tell(1);
}

/* A timer's handler publishes, in the middle of whatever main does. */
static volatile int beats;
static void on_timer(int number) {
    (void)number;
    memcpy(data, text, TEXT); /* the store */
    flush(data, TEXT);
    beats++;
}
static void timer_write(void) {
    const struct itimerval soon = {{0, 1000}, {0, 1000}}, late = {{1, 0}, {0, 400000}}, never = {{0, 0}, {0, 0}};
    const struct sigaction action = {.sa_handler = on_timer, .sa_flags = SA_RESTART};
    struct sigaction before;
    sigaction(SIGALRM, &action, NULL);
    CHECK(sigaction(SIGALRM, NULL, &before) == 0 && before.sa_handler == on_timer);
    setitimer(ITIMER_REAL, &soon, NULL);
    for (volatile char *other = data + PAGE; beats < 3; other[64] = 1) {}
    setitimer(ITIMER_REAL, &late, NULL);
    for (int seen = beats; beats == seen;) usleep(1000);
    setitimer(ITIMER_REAL, &never, NULL);
    cxl_flush(data + PAGE + 64, 1);
    cxl_fence();
    tell(1);
}

/* Threads that meet at a barrier, and a lock that spins. */
enum { THREADS = 3, ROUNDS = 30 };
static pthread_barrier_t barrier;
static pthread_spinlock_t spin;
static void *rounds(void *of) {
    int *serial = of;
    for (int k = 0; k < ROUNDS; k++) {
        pthread_spin_lock(&spin);
        data[k] = (char)(data[k] + 1); /* the store */
        pthread_spin_unlock(&spin);
        *serial += pthread_barrier_wait(&barrier) == PTHREAD_BARRIER_SERIAL_THREAD;
        CHECK(data[k] == THREADS);
    }
    return NULL;
}
static void barrier_write(void) {
    pthread_t threads[THREADS];
    int serial[THREADS] = {0};
    pthread_barrier_init(&barrier, NULL, THREADS), pthread_spin_init(&spin, 0);
    for (int k = 0; k < THREADS; k++) pthread_create(&threads[k], NULL, rounds, &serial[k]);
    for (int k = 0; k < THREADS; k++) pthread_join(threads[k], NULL);
    CHECK(serial[0] + serial[1] + serial[2] == ROUNDS);
    flush(data, ROUNDS);
    tell(1);
}
static void barrier_read(void) {
    await(1);
    for (int k = 0; k < ROUNDS; k++) CHECK(data[k] == THREADS || bug);
}

/* Waits that have a limit, of which others make use. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static sem_t written;
static void *holds(void *unused) {
    (void)unused;
    pthread_mutex_lock(&lock);
    sem_post(&written);
    usleep(1000);
    memcpy(data, text, TEXT); /* the store */
    flush(data, TEXT);
    pthread_mutex_unlock(&lock);
    sem_post(&written);
    return NULL;
}
static void limit_write(void) {
    pthread_t thread;
    struct timespec until;
    sem_init(&written, 0, 0);
    pthread_create(&thread, NULL, holds, NULL);
    clock_gettime(CLOCK_REALTIME, &until), until.tv_sec += 5;
    CHECK(sem_timedwait(&written, &until) == 0 && pthread_mutex_timedlock(&lock, &until) == 0);
    CHECK(sem_timedwait(&written, &until) == 0 && data[0] == text[0]);
    clock_gettime(CLOCK_REALTIME, &until), until.tv_nsec = 0;
    CHECK(pthread_mutex_timedlock(&lock, &until) == ETIMEDOUT && sem_timedwait(&written, &until) == -1);
    pthread_join(thread, NULL);
    tell(1);
}

/* What a thread stores when it has ended, for pthread_join's caller. */
static pthread_key_t key;
static void last_words(void *unused) {
    (void)unused;
    memcpy(data, text, TEXT); /* the store */
    flush(data, TEXT);
}
static void *named(void *of) {
    pthread_setspecific(key, of);
    return NULL;
}
static void ending_write(void) {
    pthread_t thread;
    pthread_key_create(&key, last_words);
    pthread_create(&thread, NULL, named, text);
    pthread_join(thread, NULL);
    tell(1);
}

/* Children that share variables with their parent, and one that inherits the pool's file. */
static void child_write(void) {
    char number[12];
    int status;
    snprintf(number, sizeof number, "%d", file);
    if (vfork() == 0) _exit(7);
    CHECK(wait(&status) > 0 && WEXITSTATUS(status) == 7);
    if (vfork() == 0) execl(program, program, number, bug ? "bug" : "right", "child", (char *)NULL);
    CHECK(wait(&status) > 0 && status == 0);
    tell(1);
}
static void child(int inherited) {
    file = inherited;
    data = mapped(NULL, SIZE, 0) + PAGE;
    memcpy(data, text, TEXT); /* the store */
    flush(data, TEXT);
}

/* Vectors and messages: the pool's file, and the pool's bytes. */
static void parts_write(void) {
    int pair[2];
    struct iovec parts[2] = {{text, 50}, {text + 50, TEXT - 50}}, to = {data + PAGE, TEXT}, from = {data, TEXT};
    struct msghdr out = {.msg_iov = &from, .msg_iovlen = 1}, in = {.msg_iov = &to, .msg_iovlen = 1};
    CHECK(pwritev(file, parts, 2, PAGE) == TEXT); /* the store */
    CHECK(sendfile(file, file, NULL, 1) == -1);
    CHECK(pipe(pair) == 0 && splice(pair[0], NULL, file, NULL, 1, SPLICE_F_NONBLOCK) == -1 && errno == EINVAL);
    lseek(file, PAGE, SEEK_SET);
    CHECK(writev(file, parts, 2) == TEXT && lseek(file, 0, SEEK_CUR) == PAGE + TEXT);
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
    CHECK(recv(pair[1], data + PAGE, 1, MSG_DONTWAIT) == -1);
    CHECK(sendmsg(pair[0], &out, 0) == TEXT && recvmsg(pair[1], &in, 0) == TEXT);
    CHECK(sendto(pair[0], data, TEXT, 0, NULL, 0) == TEXT &&
          recvfrom(pair[1], data + PAGE, TEXT, 0, NULL, NULL) == TEXT);
    CHECK(memcmp(data + PAGE, text, TEXT) == 0);
    cxl_flush(data + PAGE, TEXT);
    flush(data, TEXT);
    tell(1);
}
static void parts_read(void) {
    char got[TEXT];
    struct iovec parts[2] = {{got, 7}, {got + 7, TEXT - 7}};
    await(1);
    CHECK(preadv(file, parts, 2, PAGE) == TEXT && (memcmp(got, text, TEXT) == 0 || bug));
    lseek(file, PAGE, SEEK_SET);
    CHECK(readv(file, parts, 2) == TEXT && (memcmp(got, text, TEXT) == 0 || bug));
}

/* Errors that jump out of calls. */
static jmp_buf back;
static __attribute__((noinline)) void fails(int calls) {
    if (calls == 0) longjmp(back, 1);
    fails(calls - 1);
    __asm__ volatile("");
}
static __attribute__((noinline)) void put(void) {
    if (setjmp(back) == 0) fails(5);
    memcpy(data, text, TEXT); /* the store */
}
static void jumps_write(void) {
    put();
    flush(data, TEXT);
    tell(1);
}

/* A handler of faults that jumps out of them. */
static sigjmp_buf out;
static void on_fault(int number) { siglongjmp(out, number); }
static void faults_write(void) {
    volatile char *closed = mmap(NULL, PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(signal(SIGSEGV, on_fault) != SIG_ERR);
    for (volatile int k = 0; k < 20; k++)
        if (sigsetjmp(out, 1) == 0) *closed = 1, CHECK(0);
    memcpy(data, text, TEXT); /* the store */
    flush(data, TEXT);
    tell(1);
}

/* A thread is cancelled where it sleeps; the buffer in which C keeps its way out is shorter than a jmp_buf. */
static void *cancelled(void *of) {
    struct {
        __pthread_unwind_buf_t begin, beside;
    } room;
    memset(&room, 7, sizeof room);
    (void)!__sigsetjmp((void *)&room.begin, 0);
    for (size_t k = 0; k < sizeof room.beside; k++) CHECK(((char *)&room.beside)[k] == 7);
    pthread_cleanup_push(last_words, of);
    for (;;) usleep(1000);
    pthread_cleanup_pop(1);
    return NULL;
}
static void cancel_write(void) {
    pthread_t thread;
    void *result;
    pthread_create(&thread, NULL, cancelled, text);
    usleep(2500);
    CHECK(pthread_cancel(thread) == 0 && pthread_join(thread, &result) == 0 && result == PTHREAD_CANCELED);
    tell(1);
}

/* A condition whose words lie in the pool, so that threads meet while the lock is held. */
static pthread_cond_t met = PTHREAD_COND_INITIALIZER;
static void *adds(void *from) {
    volatile char *count = data + PAGE;
    for (int k = 0; k < THREADS; k++) {
        pthread_mutex_lock(&lock);
        ++*count;
        pthread_cond_signal(&met);
        pthread_mutex_unlock(&lock);
    }
    memcpy(data, from, TEXT); /* the store */
    flush(data, TEXT);
    return NULL;
}
static void condition_write(void) {
    volatile char *count = data + PAGE;
    pthread_t thread;
    pthread_create(&thread, NULL, adds, text);
    pthread_mutex_lock(&lock);
    (void)*count; /* behind an odd number of steps, turns that end in the loop end with the lock held */
    while (*count < THREADS) pthread_cond_wait(&met, &lock);
    pthread_mutex_unlock(&lock);
    pthread_join(thread, NULL);
    cxl_flush(data + PAGE, 1);
    cxl_fence();
    tell(1);
}

/* Waits for a signal that another thread sends, and for a file that never is ready. */
static pthread_t waiting;
static int pipes[2];
static void *signals(void *from) {
    usleep(1500);
    memcpy(data, from, TEXT); /* the store */
    flush(data, TEXT);
    for (int k = 0; k < 2; k++) pthread_kill(waiting, SIGUSR1 + 2 * k);
    for (int k = 0; k < 2; k++) {
        while (data[PAGE] == k) usleep(1000); /* steps, while the other thread waits */
        CHECK(write(pipes[1], "", 1) == 1);
    }
    return NULL;
}
static void signals_write(void) {
    const struct timespec long_time = {5, 0}, short_time = {0, 1000000};
    int number = 0;
    char byte;
    sigset_t both;
    pthread_t thread;
    struct epoll_event event = {.events = EPOLLIN};
    const int set = epoll_create1(0);
    CHECK(set >= 0 && pipe(pipes) == 0 && epoll_ctl(set, EPOLL_CTL_ADD, pipes[0], &event) == 0);
    sigemptyset(&both), sigaddset(&both, SIGUSR1), sigaddset(&both, SIGUSR1 + 2);
    pthread_sigmask(SIG_BLOCK, &both, NULL);
    waiting = pthread_self();
    pthread_create(&thread, NULL, signals, text);
    CHECK(sigtimedwait(&both, NULL, &long_time) > 0 && sigwait(&both, &number) == 0 && number > 0);
    CHECK(sigtimedwait(&both, NULL, &short_time) < 0 && errno == EAGAIN);
    struct pollfd one = {.fd = pipes[0], .events = POLLIN};
    CHECK(ppoll(&one, 1, &short_time, NULL) == 0 && epoll_pwait(set, &event, 1, 1, &both) == 0);
    data[PAGE] = 1;
    cxl_flush(data + PAGE, 1), cxl_fence();
    CHECK(ppoll(&one, 1, NULL, NULL) == 1 && read(pipes[0], &byte, 1) == 1);
    data[PAGE] = 2;
    cxl_flush(data + PAGE, 1), cxl_fence();
    CHECK(epoll_pwait(set, &event, 1, -1, &both) == 1);
    pthread_join(thread, NULL);
    tell(1);
}

/* A timer that calls a function in a thread of the C library. Its store is seen on its own host before it is flushed. */
static volatile int noted;
static void notes(union sigval value) {
    memcpy(data, value.sival_ptr, TEXT); /* the store */
    flush(data, TEXT);
    tell(1);
    noted = 1;
}
static void notified_write(void) {
    struct sigevent event = {.sigev_notify = SIGEV_THREAD, .sigev_notify_function = notes};
    const struct itimerspec soon = {.it_value = {0, 1000000}};
    timer_t timer;
    event.sigev_value.sival_ptr = text;
    CHECK(timer_create(CLOCK_MONOTONIC, &event, &timer) == 0 && timer_settime(timer, 0, &soon, NULL) == 0);
    do cxl_invalidate((void *)(uintptr_t)ready, 8);
    while (*ready < 1);
    while (!noted) sched_yield();
}

/* C11's threads, and a word that is awaited by a system call, as by the C++ library. */
static mtx_t mutex;
static cnd_t changed;
static volatile int done;
static uint32_t word;
static int stores(void *from) {
    mtx_lock(&mutex);
    memcpy(data, from, TEXT); /* the store */
    flush(data, TEXT);
    done = 1;
    cnd_signal(&changed);
    mtx_unlock(&mutex);
    thrd_sleep(&(struct timespec){0, 1000}, NULL);
    __atomic_store_n(&word, 1, __ATOMIC_SEQ_CST);
    syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
    return 7;
}
static void c11_write(void) {
    const struct timespec limit = {0, 1000000};
    thrd_t thread;
    int result;
    CHECK(mtx_init(&mutex, mtx_plain) == thrd_success && cnd_init(&changed) == thrd_success);
    CHECK(thrd_create(&thread, stores, text) == thrd_success);
    mtx_lock(&mutex);
    while (!done) cnd_wait(&changed, &mutex);
    mtx_unlock(&mutex);
    while (!__atomic_load_n(&word, __ATOMIC_SEQ_CST)) syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, 0, NULL, NULL, 0);
    CHECK(syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, 0, NULL, NULL, 0) == -1 && errno == EAGAIN);
    CHECK(syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, 1, &limit, NULL, 0) == -1 && errno == ETIMEDOUT);
    CHECK(thrd_join(thread, &result) == thrd_success && result == 7);
    tell(1);
}

/* A copy within the pool, of which compilers announce the store before the load. */
typedef struct {
    char bytes[520];
} record;
static void copied_write(void) {
    record *all = (record *)(void *)(data + PAGE);
    memcpy(all, text, TEXT);
    *(record *)(void *)data = *all; /* the store */
    cxl_flush(all, TEXT);
    flush(data, sizeof *all);
    tell(1);
}

static int by_byte(const void *a, const void *b) { return *(const unsigned char *)a - *(const unsigned char *)b; }
static void sorted_write(void) {
    for (int k = 0; k < TEXT; k++) data[k] = text[TEXT - 1 - k];
    qsort(data, TEXT, 1, by_byte); /* the store */
    flush(data, TEXT);
    tell(1);
}

/* An exchange is a locked instruction, and so a fence. */
static void exchange_write(void) {
    memcpy(data, text, TEXT); /* the store */
    if (!bug) cxl_flush(data, TEXT);
#if defined(__x86_64__)
    static uint64_t word;
    uint64_t value = 1;
    __asm__ volatile("xchg %0, %1" : "+r"(value), "+m"(word) : : "memory");
    __asm__ volatile("lock; xchg %0, %1" : "+r"(value), "+m"(word) : : "memory");
#else
    cxl_fence();
#endif
    tell(1);
}

/* The reader looks at a line of which nothing told it, and then through the same instruction at one that is not flushed. */
static __attribute__((noinline)) int look(const volatile char *at) {
    cxl_invalidate((const void *)(uintptr_t)at, 1);
    return *at;
}
static void ahead_write(void) {
    char go[TEXT];
    tell(1);
    data[0] = 1;
    cxl_flush(data, 1);
    cxl_fence();
    snprintf(go, sizeof go, "%s.go", path);
    CHECK(close(creat(go, 0600)) == 0);
    data[PAGE] = 1; /* the store */
    flush(data + PAGE, 1);
    tell(2);
}
static void ahead_read(void) {
    char go[TEXT];
    snprintf(go, sizeof go, "%s.go", path);
    await(1);
    while (access(go, F_OK)) usleep(100);
    CHECK(look(data) == 1);
    do cxl_invalidate((void *)(uintptr_t)ready, 8);
    while (*ready != 2);
    unlink(go);
    CHECK(look(data + PAGE) == 1);
}

/* The newline of a record is found before the bytes behind it, which the reader did not invalidate. */
static void newline_write(void) {
    volatile uint64_t *heard = ready + 8;
    for (uint64_t lap = 1; lap <= 2; lap++) {
        memset(data, (int)lap, TEXT), data[50] = '\n'; /* the store */
        flush(data, TEXT);
        tell(lap);
        do cxl_invalidate(heard, 8);
        while (*heard < lap);
    }
}
static void newline_read(void) {
    volatile uint64_t *heard = ready + 8;
    volatile size_t most = SIZE_MAX / 2;
    char got[TEXT];
    for (uint64_t lap = 1; lap <= 2; lap++) {
        do cxl_invalidate(ready, 8);
        while (*ready < lap);
        cxl_invalidate(data, lap == 1 ? TEXT : 64);
        memcpy(got, data, lap == 1 ? TEXT : 64);
        CHECK(bug || (got[0] == (char)lap && memchr(data, '\n', most) == data + 50));
        *heard = lap;
        cxl_flush(heard, 8);
        cxl_fence();
    }
}

/* A handler opens pages that are closed to stores or to all, as a tracker of changes does it: also for what functions of the
 * C library store and load, for locked instructions, and for stores past the cache. There are many mappings, and each page is closed and opened in turn. */
static volatile int opened;
static void on_closed(int number, siginfo_t *info, void *context) {
    (void)number, (void)context;
    opened++;
    CHECK(mprotect((void *)((uintptr_t)info->si_addr / PAGE * PAGE), PAGE, PROT_READ | PROT_WRITE) == 0);
}
static void guarded_write(void) {
    const struct sigaction action = {.sa_sigaction = on_closed, .sa_flags = SA_SIGINFO};
    char got[TEXT], *middle = data + 2 * PAGE - TEXT / 2;
    CHECK(sigaction(SIGSEGV, &action, NULL) == 0);
    for (int k = 0; k < 80; k++) {
        char *more = mapped(NULL, 8 * PAGE, PAGE);
        for (int page = 0; page < 8; page++)
            CHECK(!mprotect(more + page * PAGE, PAGE, PROT_READ) &&
                  !mprotect(more + page * PAGE, PAGE, PROT_READ | PROT_WRITE));
    }
    CHECK(mprotect(data + PAGE, 2 * PAGE, PROT_READ) == 0);
    volatile size_t some = TEXT; /* so that no compiler moves the bytes by itself */
    memset(middle, 1, some);
    CHECK(opened == 2);
    cxl_flush(middle, TEXT);
    CHECK(mprotect(data + PAGE, 2 * PAGE, PROT_NONE) == 0);
    memcpy(got, middle, some);
    CHECK(opened == 4 && got[TEXT - 1] == 1);
    CHECK(mprotect(data + PAGE, 2 * PAGE, PROT_READ) == 0);
    cxl_store_nt(data + PAGE, (char[64]){1}, 64);
    CHECK(opened == 5);
    cxl_fence();
    CHECK(__atomic_fetch_add((uint64_t *)(void *)(data + 2 * PAGE), 1, __ATOMIC_SEQ_CST) && opened == 6);
    cxl_flush(data + 2 * PAGE, 8);
    cxl_fence();
    memcpy(data, text, TEXT); /* the store */
    flush(data, TEXT);
    tell(1);
}

/* A device is asked for before it is opened. */
static void asked(void) {
    struct stat its;
    struct statx more;
    CHECK(stat(path, &its) == 0 && S_ISCHR(its.st_mode));
    CHECK(statx(AT_FDCWD, path, 0, STATX_TYPE, &more) == 0 && S_ISCHR(more.stx_mode));
}

static const struct {
    const char *name;
    void (*writes)(void), (*reads)(void);
} ways[] = {
    {"seam", seam_write, seam_read},
    {"unmapped", unmapped_write, usual_read},
    {"remapped", remapped_write, usual_read},
    {"locked", locked_write, usual_read},
    {"timer", timer_write, usual_read},
    {"barrier", barrier_write, barrier_read},
    {"ending", ending_write, usual_read},
    {"limit", limit_write, usual_read},
    {"child", child_write, usual_read},
    {"parts", parts_write, parts_read},
    {"jumps", jumps_write, usual_read},
    {"copied", copied_write, usual_read},
    {"sorted", sorted_write, usual_read},
    {"exchange", exchange_write, usual_read},
    {"ahead", ahead_write, ahead_read},
    {"faults", faults_write, usual_read},
    {"cancel", cancel_write, usual_read},
    {"c11", c11_write, usual_read},
    {"notified", notified_write, usual_read},
    {"signals", signals_write, usual_read},
    {"condition", condition_write, usual_read},
    {"newline", newline_write, newline_read},
    {"guarded", guarded_write, usual_read},
};

int main(int count, char **words) {
    if (count < 4) return 2;
    program = words[0], path = words[1];
    for (int k = 0; k < TEXT; k++) text[k] = (char)(k + 33);
    bug = strcmp(words[count - 2], "bug") == 0;
    if (strcmp(words[count - 1], "child") == 0) {
        child(atoi(path));
        return 0;
    }
    if (strcmp(words[2], "asked") == 0) {
        asked();
        return 0;
    }
    file = open(path, O_RDWR | O_CREAT, 0600);
    CHECK(file >= 0 && ftruncate(file, SIZE) == 0);
    ready = (volatile uint64_t *)(void *)mapped(NULL, PAGE, 0), data = mapped(NULL, SIZE - PAGE, PAGE);
    for (size_t k = 0; k < sizeof ways / sizeof *ways; k++)
        if (strcmp(words[2], ways[k].name) == 0) (*words[count - 1] == 'w' ? ways[k].writes : ways[k].reads)();
    return 0;
}
