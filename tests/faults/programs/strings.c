/* String instructions into, out of and within a pool: a wrong result, count or pointer is an exit code of its own. */
#include <cxl.h>
#include <fcntl.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { COUNT = 300 };
static uint8_t mine[COUNT], back[COUNT];

static void *to;
static const void *from;
static size_t left;
static uint8_t equal;

static void move(void *target, const void *source) {
    to = target, from = source, left = COUNT;
    __asm__ volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(left)::"memory");
}

static void fill(void *target, uint8_t value, size_t count) {
    to = target, left = count;
    __asm__ volatile("rep stosb" : "+D"(to), "+c"(left) : "a"(value) : "memory");
}

static void compare(void *one, const void *other) {
    to = one, from = other, left = COUNT;
    __asm__ volatile("repz cmpsb\n\tsetz %0" : "=q"(equal), "+D"(to), "+S"(from), "+c"(left)::"memory", "cc");
}

static void scan(void *at, uint8_t value) {
    to = at, left = COUNT;
    __asm__ volatile("repnz scasb\n\tsetz %0" : "=q"(equal), "+D"(to), "+c"(left) : "a"(value) : "memory", "cc");
}

static uint8_t load(const void *at) {
    uint8_t value;
    from = at;
    __asm__ volatile("lodsb" : "=a"(value), "+S"(from)::"memory");
    return value;
}

int main(int count, char **words) {
    const int file = open(words[1], O_RDWR | O_CREAT, 0600);
    if (count != 2 || file < 0 || ftruncate(file, 4096) != 0) return 2;
    uint8_t *p = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (p == MAP_FAILED) return 2;
    for (int k = 0; k < COUNT; k++) mine[k] = (uint8_t)(7 * k + 1);

    move(p, mine); /* into it, out of it, within it */
    if (left || to != p + COUNT || from != mine + COUNT) return 10;
    move(back, p);
    if (left || to != back + COUNT || from != p + COUNT || memcmp(back, mine, COUNT) != 0) return 11;
    move(p + 512, p);
    if (left || to != p + 512 + COUNT || p[512 + COUNT - 1] != mine[COUNT - 1]) return 12;
    fill(p + 1024, 0x5A, 200);
    if (left || to != p + 1224 || p[1223] != 0x5A || p[1224] != 0) return 13;

    compare(p, p + 512);
    if (!equal || left) return 14;
    mine[130] ^= 1;
    compare(p, mine);
    if (equal || left != COUNT - 131 || to != p + 131 || from != mine + 131) return 15;
    compare(mine, p);
    if (equal || left != COUNT - 131 || to != mine + 131 || from != p + 131) return 16;
    scan(p + 1024, 0);
    if (!equal || left != COUNT - 201 || to != p + 1225) return 17;
    if (load(p + 3) != 22 || from != p + 4) return 18;

    to = p + 299, left = 3; /* downwards */
    __asm__ volatile("std\n\trep stosb\n\tcld" : "+D"(to), "+c"(left) : "a"(9) : "memory", "cc");
    if (left || to != p + 296 || p[299] != 9 || p[297] != 9 || p[296] == 9) return 19;
    p[2000] = 1, p[2001] = 2, p[2002] = 3;
    to = p + 2003, from = p + 2002, left = 3;
    __asm__ volatile("std\n\trep movsb\n\tcld" : "+D"(to), "+S"(from), "+c"(left)::"memory", "cc");
    if (left || to != p + 2000 || from != p + 1999 || p[2001] != 1 || p[2003] != 3) return 20;
#ifndef FORGET
    cxl_flush(p, 4096);
    cxl_fence();
#endif
    return 0;
}
