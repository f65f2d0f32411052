/* Small programs of two hosts, `a` and `b`, each with one mistake; -DREPAIRED is without it. */
#include <cxl.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#ifdef REPAIRED
enum { RIGHT = 1 };
#else
enum { RIGHT = 0 };
#endif
enum mistake { SECOND_LAP = 1, WRONG_ADDRESS, MSYNC_ONLY, DIRTY_AT_EXIT, LOCKED_BY_TWO, TWO_WRITERS };
enum { LAPS = 2 };

typedef struct {
    _Alignas(64) volatile uint64_t to_b;
    _Alignas(64) volatile uint64_t to_a;
    _Alignas(64) uint64_t entry[4];
    _Alignas(64) _Atomic uint64_t count;
    _Alignas(64) uint64_t words[8];
    _Alignas(64) uint64_t other_words[8];
} shared;

static void publish(volatile uint64_t *flag, uint64_t value) {
    *flag = value;
    cxl_flush(flag, sizeof *flag);
    cxl_fence();
}

static void await(volatile uint64_t *flag, uint64_t value) {
    do cxl_invalidate(flag, sizeof *flag);
    while (*flag < value);
}

/* A stale but valid entry on the second lap. */
static int second_lap(shared *s, int is_a) {
    for (uint64_t lap = 1; lap <= LAPS; lap++) {
        if (is_a) {
            for (int k = 0; k < 4; k++) s->entry[k] = lap; /* lap */
            cxl_flush(s->entry, sizeof s->entry);
            cxl_fence();
            publish(&s->to_b, lap);
            await(&s->to_a, lap);
        } else {
            await(&s->to_b, lap);
            if (lap == 1 || RIGHT) cxl_invalidate(s->entry, sizeof s->entry);
            uint64_t got[4];
            memcpy(got, s->entry, sizeof got); /* read lap */
            if (got[0] == 0 || got[0] != got[3]) return 1; /* whatever it is, it is whole */
            publish(&s->to_a, lap);
        }
    }
    return 0;
}

/* A flush of the pointer, not of what it points to. */
static int wrong_address(shared *s, int is_a) {
    if (is_a) {
        uint64_t *where = &s->entry[0];
        *where = 7; /* meant */
        if (RIGHT) cxl_writeback(where, sizeof *where);
        else cxl_writeback(&where, sizeof *where);
        cxl_fence();
        publish(&s->to_b, 1);
    } else {
        await(&s->to_b, 1);
        cxl_invalidate(s->entry, sizeof s->entry);
        volatile uint64_t got = s->entry[0]; /* read meant */
        (void)got;
    }
    return 0;
}

static int msync_only(shared *s, int is_a) {
    if (!is_a) return 0;
    s->words[0] = 7; /* header */
    if (RIGHT) cxl_flush(s->words, 8);
    if (RIGHT) cxl_fence();
    return msync(s, 4096, MS_SYNC);
}

static int dirty_at_exit(shared *s, int is_a) {
    if (is_a) s->words[0] = 7; /* left */
    if (RIGHT) cxl_flush(s->words, 8);
    if (RIGHT) cxl_fence();
    return 0;
}

static int locked_by_two(shared *s, int is_a) {
    for (int k = 0; k < 3 && (is_a || !RIGHT); k++) {
        cxl_invalidate(&s->count, 8);
        atomic_fetch_add(&s->count, 1); /* increment */
        cxl_flush(&s->count, 8);
        cxl_fence();
    }
    return 0;
}

static int two_writers(shared *s, int is_a) {
    uint64_t *of_b = RIGHT ? &s->other_words[1] : &s->words[1];
    if (is_a) s->words[0] = 1; /* A's word */
    else *of_b = 2; /* B's word */
    cxl_flush(s->words, sizeof s->words);
    cxl_flush(s->other_words, sizeof s->other_words);
    cxl_fence();
    return 0;
}

int main(int count, char **words) {
    if (count != 3) return 2;
    const int file = open(words[1], O_RDWR | O_CREAT, 0600), is_a = words[2][0] == 'a';
    if (file < 0 || ftruncate(file, 4096) != 0) return 2;
    shared *s = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (s == MAP_FAILED) return 2;
    switch ((enum mistake)MISTAKE) {
    case SECOND_LAP: return second_lap(s, is_a);
    case WRONG_ADDRESS: return wrong_address(s, is_a);
    case MSYNC_ONLY: return msync_only(s, is_a);
    case DIRTY_AT_EXIT: return dirty_at_exit(s, is_a);
    case LOCKED_BY_TWO: return locked_by_two(s, is_a);
    case TWO_WRITERS: return two_writers(s, is_a);
    }
    return 2;
}
