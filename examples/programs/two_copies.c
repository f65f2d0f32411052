/* A value in two pools, which outlives a poisoned line and a lost card: a restart takes what it can read, and repairs the other copy.
 * -DBUG: an error of the memory ends the restart.
 *
 *     cxlemu cc -O2 -g two_copies.c -o two_copies
 *     cxlemu exec --pool /dev/shm/first --pool /dev/shm/second --poison every -- ./two_copies put :: ./two_copies repair */
#include "pool.h"

#include <setjmp.h>
#include <signal.h>

enum { COPIES = 2, LAST = 2 };

typedef struct {
    _Alignas(CXL_LINE) volatile uint64_t value;
    uint64_t rest[CXL_LINE / 8 - 1];
} copy;

static copy *copies[COPIES];
static sigjmp_buf before;

static void on_error(int number) { siglongjmp(before, number); }

static int can_read(const copy *from, uint64_t *value) {
    if (sigsetjmp(before, 1)) return 0;
    refresh(from, sizeof *from);
    *value = from->value;
    return 1;
}

/* Whole lines past the cache: nothing is read, and a line is no longer poisoned. */
static void put(uint64_t value) {
    const copy its = {value, {0}};
    for (int k = 0; k < COPIES; k++) {
        cxl_store_nt(copies[k], (const void *)&its, sizeof its);
        cxl_fence();
    }
}

static void repair(void) {
    uint64_t value[COPIES];
    int read[COPIES];
#ifndef BUG
    signal(SIGBUS, on_error);
#endif
    for (int k = 0; k < COPIES; k++) read[k] = can_read(copies[k], &value[k]);
    if (!read[0] && !read[1]) fail("no copy can be read");
    if (value[read[0] ? 0 : 1] != LAST) fail("the value was lost");
    put(LAST);
}

int main(int count, char **words) {
    copies[0] = map_pool("/dev/shm/first", sizeof(copy));
    copies[1] = map_pool("/dev/shm/second", sizeof(copy));
    if (count == 2 && strcmp(words[1], "repair") == 0) repair();
    else
        for (uint64_t k = 1; k <= LAST; k++) put(k);
    return 0;
}
