/* A program that leaves a process in a session of its own behind, named by its second word; both hosts store to one line. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "../../../examples/programs/pool.h"

int main(int count, char **words) {
    if (count > 2 && fork() == 0) {
        setsid();
        prctl(PR_SET_NAME, words[2]);
        for (;;) pause();
    }
    volatile uint64_t *word = map_pool("/dev/shm/servers", 4096);
    word[8 * atoi(words[1])] = 1;
    publish(&word[8 * atoi(words[1])], 8);
    printf("%d\n", atoi(words[1]));
    return 0;
}
