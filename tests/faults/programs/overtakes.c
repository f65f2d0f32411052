/* A message by instructions of the program's own. -DORDER=...: what keeps the reader's clflushopt behind the load that told it. */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#define FLUSH(p) __asm__ volatile("clflushopt %0" : "+m"(*(volatile char *)(p))::"memory")

#define LFENCE __asm__ volatile("lfence" ::: "memory")
#define LOCKED __atomic_fetch_add(&elsewhere, 1, __ATOMIC_SEQ_CST)

static volatile uint64_t *at;
static uint64_t elsewhere;

static int send(void) {
    at[0] = 7;
    FLUSH(at);
    __asm__ volatile("sfence" ::: "memory");
    at[8] = 1;
    FLUSH(at + 8);
    __asm__ volatile("sfence" ::: "memory");
    return 0;
}

static int receive(void) {
    do {
        FLUSH(at + 8);
        __asm__ volatile("mfence" ::: "memory");
    } while (!at[8]);
#ifdef ORDER
    ORDER;
#endif
    FLUSH(at);
    __asm__ volatile("mfence" ::: "memory");
    return at[0] != 7;
}

int main(int count, char **words) {
    const int file = open(words[1], O_RDWR | O_CREAT, 0600);
    if (count != 3 || file < 0 || ftruncate(file, 4096) != 0) return 2;
    at = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (at == MAP_FAILED) return 2;
    switch (words[2][0]) {
    case 's': return send();
    case 'r': return receive();
    default: return 0; /* maps the pool and touches nothing of it */
    }
}
