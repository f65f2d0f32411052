/* One host publishes a byte, another one loads it by a string instruction: string_loads POOL write|lods|scas|source|target.
 * -DINVALIDATES: it invalidates the line first, as it should. */
#include <cxl.h>
#include <fcntl.h>
#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>

int main(int count, char **words) {
    const int file = count == 3 ? open(words[1], O_RDWR | O_CREAT, 0600) : -1;
    if (file < 0 || ftruncate(file, 4096) != 0) return 2;
    char *pool = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (pool == MAP_FAILED) return 2;
    volatile uint64_t *flag = (volatile uint64_t *)(void *)pool, *data = flag + 8;
    if (words[2][0] == 'w') {
        *data = 7;
        cxl_flush(data, 8);
        cxl_fence();
        *flag = 1;
        cxl_flush(flag, 8);
        cxl_fence();
        return 0;
    }
    do cxl_invalidate(flag, 8);
    while (*flag != 1);
#ifdef INVALIDATES
    cxl_invalidate(data, 8);
#endif
    char *at = (char *)(uintptr_t)data, *other = pool + 512; /* on the same page, which one fault would open */
    switch (words[2][1]) {
    case 'o': __asm__ volatile("lodsb" : "+S"(at)::"al", "memory"); break;
    case 'c': __asm__ volatile("scasb" : "+D"(at) : "a"(7) : "cc", "memory"); break;
    case 'a': other = at, at = pool + 512; /* target; fall through */
    default: __asm__ volatile("cmpsb" : "+S"(at), "+D"(other)::"cc", "memory");
    }
    return 0;
}
