/* Ways to come to a pool by the system: `system FOLDER NAME HOW write` stores without a flush and publishes, `read` waits and loads.
 * With `stops`, the writer is a child that is stopped and continued before. */
#define _GNU_SOURCE
#include <cxl.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BYTES = 1 << 20, ACCESS = PROT_READ | PROT_WRITE };

static int stops(void) {
    int first = 0, second = 0, last = 0;
    const pid_t child = fork();
    if (child == 0) return raise(SIGSTOP);
    if (waitpid(child, &first, WUNTRACED) != child || !WIFSTOPPED(first) || kill(child, SIGCONT)) _exit(3);
    if (waitpid(-1, &second, WCONTINUED) != child || !(WIFCONTINUED(second) || second == 0)) _exit(4);
    if (WIFCONTINUED(second) && waitpid(-1, &last, 0) != child) _exit(5);
    _exit(last != 0 || wait(NULL) != -1);
}

int main(int count, char **words) {
    (void)count;
    const int folder = open(words[1], O_DIRECTORY | O_RDONLY), file = openat(folder, words[2], O_RDWR | O_CREAT, 0600);
    if (file < 0 || ftruncate(file, BYTES) != 0) return 1;
    char *pool = strcmp(words[3], "calls") == 0 ? (char *)syscall(SYS_mmap, NULL, BYTES, ACCESS, MAP_SHARED, file, 0)
                                                : mmap(NULL, BYTES, ACCESS, MAP_SHARED, file, 0);
    if (strcmp(words[3], "moves") == 0) pool = (char *)syscall(SYS_mremap, pool, BYTES / 2, BYTES / 2, 1, NULL);
    if (pool == MAP_FAILED) return 2;
    volatile char *text = pool, *ready = pool + 4096;
    if (strcmp(words[4], "write") == 0) {
        if (strcmp(words[3], "stops") == 0 && stops()) return 3;
        *text = 1;
        cxl_fence();
        *ready = 1;
        cxl_flush((void *)ready, 1);
        cxl_fence();
        return 0;
    }
    while (!*ready) cxl_invalidate((void *)ready, 1);
    cxl_invalidate(pool, 1);
    return *text > 1;
}
