/* One host stores a word and publishes it, says so on its output, and looks again and again; `value` reads it once. */
#include <cxl.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

typedef struct {
    uint64_t words[8];
} line;

int main(int count, char **words) {
    const int file = open(words[1], O_RDWR | O_CREAT, 0600);
    if (count != 3 || file < 0 || ftruncate(file, 4096) != 0) return 2;
    const size_t nbytes = strtoul(words[2] + 1, NULL, 10); /* of what overwrites lines */
    const line other = {{(uint64_t)count}};
    volatile uint64_t *at = (uint64_t *)mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (at == MAP_FAILED) return 2;
    switch (words[2][0]) {
    case 's': /* store and publish */
        at[0] = 7;
        cxl_flush((void *)at, 8);
        cxl_fence();
        return 0;
    case 'm': /* many lines, which one fence lands */
        for (int k = 0; k < 4; k++) at[8 * k] = 9;
        cxl_flush((void *)at, 4 * 64);
        cxl_fence();
        return 0;
    case 'd': /* dirty: no flush */ at[0] = 8; return 0;
    case 'a': /* again: for as long as it can */
        for (int k = 0; k < 64; k++) at[8] = (uint64_t)k, cxl_flush((void *)(at + 8), 8), cxl_fence();
        return 0;
    case 'l': /* locked, by the programmer's own hand */
        __asm__ volatile("lock incq %0" : "+m"(at[16])::"memory");
        __asm__ volatile("lock; xaddq %0, (%1,%2,8)" ::"r"(UINT64_C(2)), "r"(at), "r"(INT64_C(16)) : "memory");
        cxl_flush((void *)(at + 16), 8);
        cxl_fence();
        return 0;
    case 'h': /* hidden in assembly */
        __asm__ volatile("movq $1, (%0)" ::"r"(at + 24) : "memory");
        cxl_flush((void *)(at + 24), 8);
        cxl_fence();
        return 0;
    case 'f': /* fill */ memset((void *)at, 3, nbytes); break;
    case 'b': /* behind a byte */ memset((char *)at + 1, 3, nbytes); break;
    case 'c': /* copy */ memcpy((void *)at, &other, nbytes); break;
    case 't': /* take */ *(line *)(void *)at = other; break;
    case 'k': /* the kernel stores none of it */
        if (read(open("/dev/null", O_RDONLY), (void *)at, nbytes) != 0) return 3;
        break;
    case 'r': /* repeat */ {
        void *to = (void *)at;
        size_t left = nbytes;
        __asm__ volatile("rep stosb" : "+D"(to), "+c"(left) : "a"(3) : "memory");
        break;
    }
    default: printf("%llu\n", (unsigned long long)at[0]); return 0;
    }
    cxl_flush((void *)at, nbytes);
    cxl_fence();
    return 0;
}
