/* Stores a byte to each page of a pool of 32 MiB. */
#include <fcntl.h>
#include <stddef.h>
#include <sys/mman.h>

enum { SIZE = 32 << 20, PAGE = 4096 };
int main(int count, char **words) {
    volatile char *at = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, open(words[1], O_RDWR), 0);
    if (count < 2 || at == MAP_FAILED) return 3;
    for (long k = 0; k < SIZE; k += PAGE) at[k] = 1;
    return 0;
}
