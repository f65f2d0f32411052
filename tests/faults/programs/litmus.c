/* One host's part of a litmus test, as real accesses: litmus POOL STEP..., where a step is OPERATION:OFFSET[:VALUE].
 * It prints what each load saw. */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define LINE(instruction, at) __asm__ volatile(instruction " %0" : "+m"(*(volatile char *)(at)))

int main(int count, char **words) {
    const int file = count > 1 ? open(words[1], O_RDWR | O_CREAT, 0600) : -1;
    if (file < 0 || ftruncate(file, 4096) != 0) return 2;
    char *pool = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (pool == MAP_FAILED) return 2;
    for (int k = 2; k < count; k++) {
        char operation;
        unsigned at = 0, value = 0;
        if (sscanf(words[k], "%c:%u:%u", &operation, &at, &value) < 1 || at > 4088) return 2;
        volatile uint64_t *word = (volatile uint64_t *)(void *)(pool + at);
        switch (operation) {
        case 's': *word = value; break;
        case 'n': __asm__ volatile("movnti %1, %0" : "=m"(*word) : "r"((uint64_t)value)); break;
        case 'f': LINE("clflushopt", word); break;
        case 'k': LINE("clwb", word); break;
        case 'x': /* also for what this host has flushed to load it again, which takes more than sfence */
            __asm__ volatile("mfence" : : : "memory");
            break;
        case 'i':
            LINE("clflushopt", word);
            __asm__ volatile("mfence" : : : "memory");
            break;
        case 'l': printf("%d=%llu\n", k - 2, (unsigned long long)*word); break;
        case 'I': /* waits for this line only, and orders no later load */ LINE("clflush", word); break;
        case 'G': /* as lines.c has it where a processor can: not even in order with this thread's other signals */
            *word = value;
            LINE("clflushopt", word);
            break;
        case 'g': /* clflush takes this line, and waits for no other one */
            *word = value;
            LINE("clflush", word);
            break;
        case 'w':
            do LINE("clflush", word);
            while (*word < value);
            break;
        default: return 2;
        }
    }
    return 0;
}
