/* Locks of many kinds in a coherent page, around a counter and a table outside of it: ./locks POOL HOST LOCK [ROUNDS [MISTAKE]] */
#include <cxl.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { HOSTS = 4, WORDS = 24, SIZE = 2 << 20 };
typedef struct {
    _Alignas(64) _Atomic uint32_t next;
    _Alignas(64) _Atomic uint32_t now;
    volatile uint32_t plain_now; /* beside it, in the same line */
    _Alignas(64) _Atomic uint32_t held;
    volatile uint32_t plain_held, flag[2], turn;
    _Alignas(64) _Atomic uint32_t readers;
    _Alignas(64) _Atomic uint32_t tail; /* a host, + 1 */
    struct {
        _Alignas(64) _Atomic uint32_t waits, behind;
    } node[HOSTS];
    _Alignas(4096) uint64_t count;
    uint64_t table[WORDS];
} shared;

static shared *s;
static uint32_t ticket;

static void take(const char *lock, uint32_t me) {
    uint32_t free = 0;
    if (strstr("ticket plain-ticket", lock)) {
        ticket = atomic_fetch_add_explicit(&s->next, 1, memory_order_relaxed);
        if (*lock == 'p')
            while (s->plain_now != ticket) continue;
        else
            while (atomic_load_explicit(&s->now, memory_order_acquire) != ticket) continue;
    } else if (!strcmp(lock, "exchange")) {
        while (atomic_exchange_explicit(&s->held, 1, memory_order_acquire)) continue;
    } else if (!strcmp(lock, "look-first")) {
        do
            while (atomic_load_explicit(&s->held, memory_order_relaxed)) continue;
        while (atomic_exchange_explicit(&s->held, 1, memory_order_acquire));
    } else if (!strcmp(lock, "compare")) {
        while (!atomic_compare_exchange_weak(&s->held, &free, 1)) free = 0;
    } else if (!strcmp(lock, "plain-release")) {
        while (__atomic_exchange_n(&s->plain_held, 1, __ATOMIC_ACQUIRE)) continue;
    } else if (!strcmp(lock, "readers")) {
        while (!atomic_compare_exchange_weak(&s->readers, &free, 1u << 31)) free = 0;
    } else if (!strcmp(lock, "assembly")) {
        for (uint32_t old = 1; old;)
            __asm__ volatile("xchgl %0, %1" : "=r"(old), "+m"(s->plain_held) : "0"(1) : "memory");
    } else if (!strcmp(lock, "queue")) {
        atomic_store_explicit(&s->node[me].behind, 0, memory_order_relaxed);
        atomic_store_explicit(&s->node[me].waits, 1, memory_order_relaxed);
        const uint32_t before = atomic_exchange(&s->tail, me + 1);
        if (!before) return;
        atomic_store_explicit(&s->node[before - 1].behind, me + 1, memory_order_release);
        while (atomic_load_explicit(&s->node[me].waits, memory_order_acquire)) continue;
    } else { /* Peterson's, of two hosts */
        s->flag[me] = 1;
        s->turn = 1 - me;
        cxl_fence();
        while (s->flag[1 - me] && s->turn == 1 - me) continue;
    }
}

static void give(const char *lock, uint32_t me) {
    uint32_t mine = me + 1, behind;
    if (!strcmp(lock, "ticket")) atomic_store_explicit(&s->now, ticket + 1, memory_order_release);
    else if (!strcmp(lock, "plain-ticket")) s->plain_now = ticket + 1;
    else if (!strcmp(lock, "plain-release") || !strcmp(lock, "assembly")) s->plain_held = 0;
    else if (!strcmp(lock, "readers")) atomic_fetch_and(&s->readers, ~(1u << 31));
    else if (!strcmp(lock, "peterson")) s->flag[me] = 0;
    else if (strcmp(lock, "queue")) atomic_store_explicit(&s->held, 0, memory_order_release);
    else if (!atomic_compare_exchange_strong(&s->tail, &mine, 0)) {
        while (!(behind = atomic_load_explicit(&s->node[me].behind, memory_order_acquire))) continue;
        atomic_store_explicit(&s->node[behind - 1].waits, 0, memory_order_release);
    }
}

static uint64_t sum(void) {
    uint64_t all = 0;
    for (int k = 0; k < WORDS; k++) all += s->table[k];
    return all;
}

/* Wait for a file in a folder, or make it. */
static void file(const char *folder, const char *name, int wait) {
    char path[256];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    if (!wait) close(open(path, O_CREAT | O_WRONLY, 0600));
    while (wait && access(path, F_OK)) usleep(1000);
}

/* Host 1 looks at a flag, which host 0 sets behind that, and then at old bytes, as it has not learned of new ones. */
static int looks(uint32_t me, const char *folder, int plain) {
    if (me == 0) {
        file(folder, "looked", 1);
        s->table[0]++;
        cxl_flush(&s->table, sizeof s->table);
        cxl_fence();
        if (plain) s->plain_now = 1;
        else atomic_store_explicit(&s->now, 1, memory_order_release);
        file(folder, "stored", 0);
        return 0;
    }
    uint64_t seen = *(volatile uint64_t *)s->table;
    seen += plain ? s->plain_now : atomic_load_explicit(&s->now, memory_order_acquire);
    file(folder, "looked", 0);
    file(folder, "stored", 1);
    return seen + *(volatile uint64_t *)s->table > 1;
}

/* The same where host 0 sets the flag amid host 1's load, after its step: that faults until then. */
static const char *folder_of_faults;
static void wait_for_store(int number) {
    (void)number;
    file(folder_of_faults, "looked", 0);
    file(folder_of_faults, "stored", 1);
    mprotect(s, 4096, PROT_READ | PROT_WRITE);
}
static int sees(uint32_t me, const char *folder) {
    if (me == 0) return looks(me, folder, 0);
    folder_of_faults = folder;
    signal(SIGSEGV, wait_for_store);
    const uint64_t seen = *(volatile uint64_t *)s->table;
    mprotect(s, 4096, PROT_NONE);
    if (!atomic_load_explicit(&s->now, memory_order_acquire)) return 2;
    return *(volatile uint64_t *)s->table != seen; /* without an invalidate */
}

/* Host 1 sets its flag before it looks at host 0's, which is the other half of the same word. */
static int waits(uint32_t me) {
    if (me == 1) s->flag[1] = 1;
    while (me == 1 && !s->flag[0]) continue;
    cxl_invalidate(&s->table, sizeof s->table);
    s->table[me] = 1;
    cxl_flush(&s->table, sizeof s->table);
    cxl_fence();
    s->flag[0] = 1;
    return 0;
}

int main(int count, char **words) {
    const uint32_t me = (uint32_t)atoi(words[2]);
    const char *lock = words[3], *mistake = count > 5 ? words[5] : "";
    const size_t nbytes = sizeof s->count + sizeof s->table;
    s = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, open(words[1], O_RDWR), 0);
    if (s == MAP_FAILED) return 3;
    if (!strncmp(lock, "look-at", 7)) return looks(me, words[4], !strcmp(lock, "look-at-plain"));
    if (!strcmp(lock, "sees")) return sees(me, words[4]);
    if (!strcmp(lock, "wait")) return waits(me);
    for (int k = 0, rounds = count > 4 ? atoi(words[4]) : 8; k < rounds; k++) {
        if (strcmp(mistake, "no-lock")) take(lock, me);
        if (strcmp(mistake, "no-invalidate")) cxl_invalidate(&s->count, nbytes);
        s->table[s->count++ % WORDS]++;
        if (sum() != s->count) return 1;
        if (!strcmp(mistake, "too-early")) give(lock, me);
        if (strcmp(mistake, "no-flush")) cxl_flush(&s->count, nbytes);
        cxl_fence();
        if (strcmp(mistake, "too-early") && strcmp(mistake, "no-lock")) give(lock, me);
        if (strcmp(lock, "readers")) continue;
        uint32_t old = atomic_load(&s->readers); /* look at the table as one of several readers */
        do old &= ~(1u << 31);
        while (!atomic_compare_exchange_weak(&s->readers, &old, old + 1));
        cxl_invalidate(&s->count, nbytes);
        if (sum() != s->count) return 1;
        atomic_fetch_sub(&s->readers, 1);
    }
    return 0;
}
