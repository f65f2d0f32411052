/* One call of lines.h between two breakpoints, for a parent that steps through it. Arguments: which, the first byte,
 * how many, and whether to keep the lines or the width of a store. The bytes lie at 0x200000000. */
#define _GNU_SOURCE
#include "lines.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/ptrace.h>

int main(int count, char **words) {
    static const uint8_t from[4096];
    if (count != 5) return 2;
    const int64_t at = atoll(words[2]), nbytes = atoll(words[3]);
    const int last = atoi(words[4]);
    uint8_t *card = mmap((void *)0x200000000, 8192, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_POPULATE, -1, 0);
    if (card == MAP_FAILED || ptrace(PTRACE_TRACEME, 0, 0, 0)) return 3;
    __asm__ volatile("int3");
    switch (words[1][0]) {
    case 'f': lines_flush(card + at, nbytes, last); break;
    case 'i': lines_invalidate(card + at, nbytes); break;
    case 'n': lines_copy_nt(card + at, from + 1, nbytes, last); break;
    default: lines_fence();
    }
    __asm__ volatile("int3");
    return 0;
}
