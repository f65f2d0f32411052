/* One host sets a flag after a while, in which another one polls it. */
#include <cxl.h>
#include <fcntl.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { WHILE_US = 300000 };

int main(int count, char **words) {
    if (count != 3) return 2;
    const int file = open(words[1], O_RDWR | O_CREAT, 0600);
    if (file < 0 || ftruncate(file, 4096) != 0) return 2;
    volatile uint64_t *flag = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (flag == MAP_FAILED) return 2;
    if (strcmp(words[2], "set") == 0) {
        usleep(WHILE_US);
        *flag = 1;
        cxl_flush((void *)(uintptr_t)flag, sizeof *flag);
        cxl_fence();
        return 0;
    }
    do cxl_invalidate((void *)(uintptr_t)flag, sizeof *flag);
    while (*flag == 0);
    return 0;
}
