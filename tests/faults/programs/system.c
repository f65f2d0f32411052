/* Ways to come to a pool by the system: `system FOLDER NAME HOW write` stores without a flush and publishes, `read` waits and loads.
 * With `stops`, the writer is a child that is stopped and continued before; `replaced` and `child_stores` have other ways. */
#define _GNU_SOURCE
#include <cxl.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <linux/sched.h>
#include <pty.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
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

static int opened(const char *path, const char *name, const char *how) {
    const int folder = open(path, O_DIRECTORY | O_RDONLY), flags = O_RDWR | O_CREAT;
    struct open_how same = {.flags = (uint64_t)flags, .mode = 0600};
    if ((strcmp(how, "open") == 0 || strcmp(how, "links") == 0) && chdir(path) != 0) return -1;
    if (strcmp(how, "open") == 0) return (int)syscall(SYS_open, name, flags, 0600);
    if (strcmp(how, "openat") == 0) return (int)syscall(SYS_openat, folder, name, flags, 0600);
    if (strcmp(how, "openat2") == 0) return (int)syscall(SYS_openat2, folder, name, &same, sizeof same);
    if (strcmp(how, "links") == 0)
        return symlink(name, "link") + symlink("./link", "links") < 1 ? open("links", flags, 0600) : -1;
    char linked[4096];
    snprintf(linked, sizeof linked, "%s/folder/%s", path, name);
    if (strcmp(how, "folder") == 0) return symlinkat(path, folder, "folder") < 1 ? open(linked, flags, 0600) : -1;
    return openat(folder, name, flags, 0600);
}

static int nothing(void *unused) { return unused != NULL; }

/* Go on as another image, which is given no environment, or as a daemon. */
static void replaced(char **words, const char *how) {
    static char *none[] = {NULL};
    char *const program = words[0], *const again[] = {program, words[1], words[2], words[3], "written", NULL};
    pid_t child = 0;
    int status = -1;
    if (strcmp(how, "late") == 0)
        usleep(daemon(1, 1) == 0 ? 200000 : 0); /* the pool is opened after the command's end */
    if (strcmp(how, "execve") == 0) execve(program, again, none);
    if (strcmp(how, "execle") == 0) execle(program, program, words[1], words[2], words[3], "written", NULL, none);
    if (strcmp(how, "execvpe") == 0) execvpe(program, again, none);
    if (strcmp(how, "fexecve") == 0) fexecve(open(program, O_RDONLY), again, none);
    if (strcmp(how, "preloads") == 0) execve(program, again, (char *[]){"LD_PRELOAD=libm.so.6", NULL});
    if (strcmp(how, "clearenv") == 0 && clearenv() == 0)
        execlp(program, program, words[1], words[2], words[3], "written", NULL);
    if (strcmp(how, "spawn") == 0)
        _exit(posix_spawn(&child, program, NULL, NULL, again, none) || waitpid(child, &status, 0) != child || status);
}

static int stores(void *pool) {
    volatile char *text = pool, *ready = text + 4096;
    *text = 1;
    cxl_fence();
    *ready = 1;
    cxl_flush((void *)ready, 1);
    cxl_fence();
    return 0;
}

/* Store in a child that a function other than fork makes, if so asked. */
static int child_stores(void *pool, const char *how) {
    static char stack[1 << 16];
    int status = -1, terminal;
    pid_t child = 0;
    if (strcmp(how, "daemon") == 0 && daemon(1, 1) != 0) return 7;
    if (strcmp(how, "_Fork") == 0) child = _Fork();
    if (strcmp(how, "SYS_fork") == 0) child = (pid_t)syscall(SYS_fork);
    struct clone_args asked = {.exit_signal = SIGCHLD};
    if (strcmp(how, "clone3") == 0) child = (pid_t)syscall(SYS_clone3, &asked, sizeof asked);
    asked.flags = CLONE_CLEAR_SIGHAND;
    if (strcmp(how, "clears") == 0) child = (pid_t)syscall(SYS_clone3, &asked, sizeof asked);
    if (strcmp(how, "numbers") == 0) child = (pid_t)syscall(SYS_clone, CLONE_NEWPID | SIGCHLD, NULL, NULL, NULL, NULL);
    if (strcmp(how, "unshare") == 0) child = unshare(CLONE_NEWPID) == 0 ? fork() : -1;
    if (strcmp(how, "forkpty") == 0) child = forkpty(&terminal, NULL, NULL, NULL);
    if (strcmp(how, "shares") == 0) child = clone(stores, stack + sizeof stack, CLONE_VM | SIGCHLD, pool);
    if (strcmp(how, "clone") == 0) child = clone(stores, stack + sizeof stack, SIGCHLD, pool);
    return child == 0 ? stores(pool) : waitpid(child, &status, 0) != child || status;
}

int main(int count, char **words) {
    (void)count;
    if (strcmp(words[4], "write") == 0) replaced(words, words[3]);
    const int file = opened(words[1], words[2], words[3]);
    if (file < 0 || ftruncate(file, BYTES) != 0) return 1;
    char *pool = strcmp(words[3], "calls") == 0 ? (char *)syscall(SYS_mmap, NULL, BYTES, ACCESS, MAP_SHARED, file, 0)
                                                : mmap(NULL, BYTES, ACCESS, MAP_SHARED, file, 0);
    if (strcmp(words[3], "moves") == 0) pool = (char *)syscall(SYS_mremap, pool, BYTES / 2, BYTES / 2, 1, NULL);
    if (pool == MAP_FAILED) return 2;
    volatile char *text = pool, *ready = pool + 4096;
    if (strcmp(words[4], "read") != 0) {
        if (strcmp(words[3], "stops") == 0 && stops()) return 3;
        return child_stores(pool, words[3]);
    }
    while (!*ready) cxl_invalidate((void *)ready, 1);
    cxl_invalidate(pool, 1);
    return *text > 1;
}
