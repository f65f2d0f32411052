/* The fork server of a search: before main, a program is made here once more by fork, again and again, and waits for a request. It
 * has what the loader and the constructors of its libraries have made, and the files of the run, which are the same in all runs; it
 * opens the pool in main, as it would by itself. What it leaves behind when it ends becomes the server's child.
 * faults/programs/servers.py is the other end. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "self.h"

enum { ANSWERS = 2 };
enum refusal { READY, HAS_THREADS, HAS_FILES };

/* A run: the number of the command's first thread in it. It replaces the one in the environment, which has as many letters, so that
 * all addresses stay as they are without a server. */
typedef struct {
    char thread[4];
} request;

static int32_t server; /* the pid of the one that has forked this process */

int process_server(void) { return server; }

/* Count the entries of a folder, . and .. among them. Without the heap, which the program finds as it would without a server. */
static int entries(const char *path) {
    enum { LENGTH_AT = 16 }; /* in linux_dirent64 */
    _Alignas(8) char list[1 << 12];
    const int folder = (int)syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_DIRECTORY);
    int count = 0;
    for (long got; (got = syscall(SYS_getdents64, folder, list, sizeof list)) > 0;) {
        uint16_t length;
        for (long at = 0; at < got; at += length, count++) memcpy(&length, list + at + LENGTH_AT, sizeof length);
    }
    syscall(SYS_close, folder);
    return count;
}

/* What children would have in common, or not at all. */
static enum refusal refusal(void) {
    enum { ONE = 3, OPEN = 7 }; /* with . and ..: input, output, errors, the socket, and the folder that lists them */
    if (entries("/proc/self/task") != ONE) return HAS_THREADS;
    return entries("/proc/self/fd") == OPEN ? READY : HAS_FILES;
}

static bool answer(int driver, int32_t first, int32_t second) {
    const int32_t both[ANSWERS] = {first, second};
    return syscall(SYS_sendto, driver, both, sizeof both, MSG_NOSIGNAL, NULL, 0) == sizeof both;
}

/* Wait for a request: the fork is made while the driver still reads the last run. */
static void become(request *its, int driver) {
    char path[2 * PROGRAM_PATH];
    setpgid(0, 0), prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != server) _exit(0); /* it has ended before that */
    if (syscall(SYS_recvfrom, driver, its, sizeof *its, 0, NULL, NULL) != sizeof *its) _exit(0);
    if (!answer(driver, getpid(), 0)) _exit(2);
    syscall(SYS_close, driver);
    strcpy(getenv("CXLEMU_PROGRAM_THREAD"), its->thread);
    environment_keep();
    area_path(path, sizeof path, "output-%s", getenv("CXLEMU_PROGRAM_COMMAND"));
    const int output = area_open(path, O_WRONLY | O_CREAT | O_TRUNC);
    if (output < 0) _exit(2);
    dup2(output, STDOUT_FILENO), dup2(output, STDERR_FILENO);
    syscall(SYS_close, output);
}

/* Wait for the process, and say how it ended and whether it left any other. */
static bool tell_end(int driver, pid_t child) {
    int status = 0;
    pid_t other;
    if (syscall(SYS_wait4, child, &status, 0, NULL) != child) return false;
    while ((other = (pid_t)syscall(SYS_wait4, -1, NULL, WNOHANG, NULL)) > 0) {}
    return answer(driver, status, other == 0);
}

__attribute__((constructor)) static void serve(void) {
    const char *socket = getenv("CXLEMU_PROGRAM_SERVER");
    const int driver = socket ? atoi(socket) : -1;
    request its;
    if (driver < 0) return;
    memcpy(getenv("CXLEMU_PROGRAM_SERVER"), "-01", 3);
    prctl(PR_SET_PDEATHSIG, SIGKILL), prctl(PR_SET_CHILD_SUBREAPER, 1UL);
    const enum refusal why = refusal();
    if (!area_attach(getenv("CXLEMU_PROGRAM_RUN"), atoi(getenv("CXLEMU_PROGRAM_HOST")))) _exit(2);
    if (!answer(driver, why, 0) || why != READY) _exit(0);
    server = getpid();
    memory_ahead();
    while (true) {
        const pid_t child = fork();
        if (child == 0) {
            become(&its, driver);
            return;
        }
        if (child < 0 || !tell_end(driver, child)) break;
    }
    _exit(0);
}
