/* What a program becomes by exec, and the children that it spawns, stay in the run: where it gives them another environment, as `env -i`
 * does, what the run tells its processes is put back. They would work on the real pool, and nothing would be judged. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "real.h"
#include "self.h"
#include "turn.h"

#define PRELOAD "LD_PRELOAD="
enum { KEPT = 16 };
static char *kept[KEPT + 1]; /* NAME=VALUE */

static bool same_name(const char *first, const char *second) {
    return strncmp(first, second, strcspn(first, "=") + 1) == 0;
}

void environment_keep(void) {
    int count = 0;
    for (char **at = environ; getenv("CXLEMU_PROGRAM_RUN") && *at && count < KEPT; at++) {
        if (strncmp(*at, "CXLEMU_PROGRAM_", 15) && !same_name(PRELOAD, *at) && !same_name("ASAN_OPTIONS=", *at))
            continue;
        free(kept[count]);
        kept[count++] = strdup(*at);
    }
}
__attribute__((constructor(103))) static void begin(void) { environment_keep(); }

static size_t count_of(char *const list[]) {
    size_t count = 0;
    while (list && list[count]) count++;
    return count;
}

static size_t preload_size(char *const given[]) {
    size_t size = 1;
    for (; given && *given; given++)
        if (same_name(PRELOAD, *given)) size += strlen(*given);
    for (int k = 0; kept[k]; k++)
        if (same_name(PRELOAD, kept[k])) size += strlen(kept[k]);
    return size;
}

/* Fill `all` with what is given and what it lacks of the run's; libraries that both name stand in `preload`, the run's first. */
static char **completed(char *const given[], char **all, char *preload) {
    size_t count = count_of(given);
    for (size_t k = 0; k < count; k++) all[k] = given[k];
    for (int k = 0; kept[k]; k++) {
        size_t same = 0;
        while (same < count && !same_name(kept[k], all[same])) same++;
        if (same == count) all[count++] = kept[k];
        else if (same_name(PRELOAD, kept[k]) && !strstr(all[same], kept[k] + strlen(PRELOAD)))
            all[same] = strcat(strcat(strcpy(preload, kept[k]), " "), all[same] + strlen(PRELOAD));
    }
    all[count] = NULL;
    return all;
}
/* `name`, the environment of the next program; no memory is allocated, as a child of fork may not. */
#define COMPLETED(name, given)                    \
    char *name##_all[count_of(given) + KEPT + 1]; \
    char name##_preload[preload_size(given)];     \
    char *const *name = completed(given, name##_all, name##_preload)

/* exec: the next program may open the pool again, or never, so the others do not wait for it. */
static void replaced(void) {
    if (!self || self->inside) return;
    program_self *me = self;
    devices_await();
    if (!step_begin(me)) return;
    step_other(me, STEP_PROCESS_END, -1, NULL, NULL);
    step_end(me);
    turn_without(me->thread, THREAD_OUTSIDE);
}

REAL(int, execve, const char *, char *const[], char *const[])
PROGRAM_EXPORT int execve(const char *path, char *const arguments[], char *const given[]) {
    COMPLETED(environment, given);
    replaced();
    return real_execve()(path, arguments, environment);
}
REAL(int, execvpe, const char *, char *const[], char *const[])
PROGRAM_EXPORT int execvpe(const char *file, char *const arguments[], char *const given[]) {
    COMPLETED(environment, given);
    replaced();
    return real_execvpe()(file, arguments, environment);
}
REAL(int, fexecve, int, char *const[], char *const[])
PROGRAM_EXPORT int fexecve(int file, char *const arguments[], char *const given[]) {
    COMPLETED(environment, given);
    replaced();
    return real_fexecve()(file, arguments, environment);
}
PROGRAM_EXPORT int execv(const char *path, char *const arguments[]) { return execve(path, arguments, environ); }
PROGRAM_EXPORT int execvp(const char *file, char *const arguments[]) { return execvpe(file, arguments, environ); }

/* `arguments`, the list that a function is given after `first`, without the NULL at its end. */
#define LISTED(arguments, rest, first)                \
    va_list rest;                                     \
    int arguments##_count = 1;                        \
    va_start(rest, first);                            \
    while (va_arg(rest, char *)) arguments##_count++; \
    va_end(rest);                                     \
    char *arguments[arguments##_count + 1];           \
    va_start(rest, first);                            \
    arguments[0] = (char *)(uintptr_t)first;          \
    for (int k = 1; k <= arguments##_count; k++) arguments[k] = va_arg(rest, char *)

PROGRAM_EXPORT int execl(const char *path, const char *first, ...) {
    LISTED(arguments, rest, first);
    va_end(rest);
    return execve(path, arguments, environ);
}
PROGRAM_EXPORT int execlp(const char *file, const char *first, ...) {
    LISTED(arguments, rest, first);
    va_end(rest);
    return execvpe(file, arguments, environ);
}
PROGRAM_EXPORT int execle(const char *path, const char *first, ...) {
    LISTED(arguments, rest, first);
    char *const *environment = va_arg(rest, char *const *);
    va_end(rest);
    return execve(path, arguments, environment);
}

#define SPAWN(name)                                                                                       \
    REAL(int, name, pid_t *, const char *, const posix_spawn_file_actions_t *, const posix_spawnattr_t *, \
         char *const[], char *const[])                                                                    \
    PROGRAM_EXPORT int name(pid_t *child, const char *path, const posix_spawn_file_actions_t *files,      \
                            const posix_spawnattr_t *how, char *const arguments[], char *const given[]) { \
        COMPLETED(environment, given);                                                                    \
        return real_##name()(child, path, files, how, arguments, environment);                            \
    }
SPAWN(posix_spawn)
SPAWN(posix_spawnp)

/* What the C library starts by itself, as system and popen do, has the environment that is left. */
REAL(int, clearenv, void)
PROGRAM_EXPORT int clearenv(void) {
    const int failed = real_clearenv()();
    for (int k = 0; kept[k]; k++) putenv(kept[k]);
    return failed;
}
