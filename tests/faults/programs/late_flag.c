/* One host sets a flag after a while, in which another one polls it, in each of some rounds. Prints how often it looked in one of
 * them: as often as that or less in half of them. */
#include <cxl.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#ifndef ROUNDS
enum { ROUNDS = 1, WHILE_US = 300000 };
#endif

static int in_order(const void *a, const void *b) { return *(const int *)a - *(const int *)b; }

int main(int count, char **words) {
    static int looks[ROUNDS];
    if (count != 3) return 2;
    const int file = open(words[1], O_RDWR | O_CREAT, 0600);
    if (file < 0 || ftruncate(file, 4096) != 0) return 2;
    volatile uint64_t *flag = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (flag == MAP_FAILED) return 2;
    for (int k = 0; k < ROUNDS; k++) {
        if (strcmp(words[2], "set") == 0) {
            usleep(WHILE_US);
            *flag = (uint64_t)k + 1;
            cxl_flush((void *)(uintptr_t)flag, sizeof *flag);
            cxl_fence();
        } else {
            do cxl_invalidate((void *)(uintptr_t)flag, sizeof *flag), looks[k]++;
            while (*flag <= (uint64_t)k);
        }
    }
    qsort(looks, ROUNDS, sizeof *looks, in_order);
    printf("%d\n", looks[ROUNDS / 2]);
    return 0;
}
