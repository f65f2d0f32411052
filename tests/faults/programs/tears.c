/* A message in one line: its words are stored by one copy, or its flag by itself behind the others; and loaded by one copy (take),
 * or the flag by itself before the others. */
#include <cxl.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

typedef struct {
    uint64_t word[8];
} message;

/* tears send HOW FLAG BYTES OFFSET, or tears look HOW FLAG BYTES OFFSET */
int main(int argc, char **argv) {
    const int file = open("/dev/shm/tears", O_RDWR | O_CREAT, 0600), flag = atoi(argv[argc - 3]);
    const size_t nbytes = strtoul(argv[argc - 2], NULL, 10), words = (nbytes + 7) / 8;
    uint8_t *pool = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    message *its = (message *)(pool + atoi(argv[argc - 1])), all = {{1, 1, 1, 1, 1, 1, 1, 1}};
    volatile uint64_t *word = its->word;
    if (argv[1][0] == 's') {
        if (!strcmp(argv[2], "copy")) memcpy(its, &all, nbytes);
        else if (!strcmp(argv[2], "assign")) *its = all;
        else if (!strcmp(argv[2], "apart")) memcpy(&its->word[1], &all.word[1], nbytes - 8), word[0] = 1;
        for (size_t k = words; !strcmp(argv[2], "words") && k--;) word[k] = 1;
        cxl_flush(its, nbytes), cxl_fence();
        return 0;
    }
    message got = all;
    do {
        cxl_invalidate(its, nbytes);
        if (!strcmp(argv[2], "take")) memcpy(&got, its, nbytes), word = got.word;
    } while (!word[flag]);
    for (size_t k = 0; k < words; k++)
        if (!word[k]) return 1;
    return 0;
}
