/* Two hosts hand a row of several lines to and fro. Its lock and the number of the round lie in a page that hardware keeps coherent, the
 * row lies in one that it does not. Three mistakes of published programs (docs/field.md), each behind a macro. */
#include <cxl.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/mman.h>

enum { ROUNDS = 6, ROW = 200, LINES = (ROW + CXL_LINE - 1) / CXL_LINE, PAGE = 4096, POOL = 2 << 20 };
typedef struct {
    atomic_flag lock;
    int round;
    char pad[PAGE - 2 * sizeof(int)];
    char row[ROW];
} shared;

static void write_back(char *row) {
#ifdef LAST_LINE /* of the lines to write back, only the last one is noted */
    const unsigned dirty = 1u << (LINES - 1);
#else
    const unsigned dirty = (1u << LINES) - 1;
#endif
    for (int k = 0; k < LINES; k++)
        if (dirty >> k & 1) cxl_writeback(row + k * CXL_LINE, 1);
    cxl_fence();
}

static void invalidate(char *row) {
#if defined(WHOLE_LINES) /* the line that the row ends in is left out */
    cxl_invalidate(row, ROW / CXL_LINE * CXL_LINE);
#elif defined(STORE_FENCE) /* which later loads may pass */
    cxl_flush(row, ROW);
    cxl_fence();
#else
    cxl_invalidate(row, ROW);
#endif
}

static int look(char *row, int round) {
    int wrong = 0;
    invalidate(row);
    for (int k = 0; k < ROW; k++) wrong |= row[k] != round;
    return wrong;
}

int main(int count, char **words) {
    const int file = open(count == 3 ? words[1] : "", O_RDWR), mine = count == 3 && *words[2] == 'r';
    shared *s = mmap(NULL, POOL, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    int wrong = 0;
    if (s == MAP_FAILED) {
        perror("usage: row POOL write|read");
        return 2;
    }
    for (int done = 0; done < ROUNDS;) {
        while (atomic_flag_test_and_set(&s->lock)) {}
        if (s->round % 2 == mine) {
            if (mine) wrong |= look(s->row, s->round);
            else {
                memset(s->row, s->round + 1, ROW);
                write_back(s->row);
            }
            s->round++, done++;
        }
        atomic_flag_clear(&s->lock);
    }
    return wrong;
}
