/* Programs name a pool by its path; this file opens the run's file instead, and answers their questions about the
 * pool. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/openat2.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "paths.h"
#include "real.h"
#include "self.h"

enum { DAX_MAJOR = 252 };

/* --- paths ----------------------------------------------------------------------------------------------------------- */

/* Write the path of an open folder, or of the working folder. */
static bool folder_path(int folder, char *path, size_t size) {
    char link[64];
    if (folder == AT_FDCWD) return getcwd(path, size);
    snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
    const ssize_t length = readlink(link, path, size - 1);
    if (length > 0) path[length] = 0;
    return length > 0;
}

/* Follow the links in the path of a file's folder, where there is such a folder. */
static void real_folder(char *path, size_t size) {
    char found[PATH_MAX], *name = strrchr(path, '/');
    *name = 0;
    const bool known = realpath(*path ? path : "/", found);
    *name = '/';
    if (known && snprintf(found + strlen(found), sizeof found - strlen(found), "%s", name) > 0 && strlen(found) < size)
        strcpy(path, found);
}

/* Make a path, which may begin at a folder, absolute and free of "." and "..", without following a link at its end. */
static bool plain_path(int folder, const char *path, char *plain, size_t size) {
    char whole[2 * PROGRAM_PATH];
    size_t length = 0;
    if (path[0] == '/') snprintf(whole, sizeof whole, "%s", path);
    else if (folder_path(folder, whole, sizeof whole / 2))
        snprintf(whole + strlen(whole), sizeof whole / 2, "/%s", path);
    else return false;
    real_folder(whole, sizeof whole);
    plain[0] = 0;
    for (char *rest = whole, *part; (part = strsep(&rest, "/"));) {
        if (!part[0] || strcmp(part, ".") == 0) continue;
        if (strcmp(part, "..") == 0) {
            while (length && plain[--length] != '/') {}
            plain[length] = 0;
            continue;
        }
        if (length + strlen(part) + 2 > size) return false;
        plain[length++] = '/';
        strcpy(plain + length, part), length += strlen(part);
    }
    return true;
}

/* Return the pool that a path names, or -1. CXLEMU_PROGRAM_POOLS lists the pools' paths, separated by ':'. */
static int pool_in(int folder, const char *path) {
    KEEPS_ERRNO;
    const char *pools = getenv("CXLEMU_PROGRAM_POOLS");
    char plain[PROGRAM_PATH];
    if (!pools || !path || !*path || !plain_path(folder, path, plain, sizeof plain)) return -1;
    const size_t length = strlen(plain);
    for (int pool = 0; *pools; pool++) {
        const size_t its = strcspn(pools, ":");
        if (its == length && strncmp(pools, plain, length) == 0) return pool;
        pools += its + (pools[its] == ':');
    }
    return -1;
}

static int pool_named(const char *path) { return pool_in(AT_FDCWD, path); }

/* Return the path of the pool to which a symbolic link leads, in `room`; any other path is returned unchanged. */
static const char *followed(int folder, const char *path, char room[PROGRAM_PATH]) {
    enum { LINKS = 8 };
    KEEPS_ERRNO;
    char at[PROGRAM_PATH], link[PROGRAM_PATH];
    if (!path || !getenv("CXLEMU_PROGRAM_POOLS") || !plain_path(folder, path, at, sizeof at)) return path;
    for (int links = 0; links < LINKS; links++) {
        const ssize_t length = readlink(at, link, sizeof link - 1);
        if (length <= 0) break;
        link[length] = 0, strrchr(at, '/')[1] = 0; /* as the link may be relative to its folder */
        if (link[0] != '/' && strlen(at) + strlen(link) < sizeof at)
            memmove(link + strlen(at), link, strlen(link) + 1), memcpy(link, at, strlen(at));
        if (!plain_path(AT_FDCWD, link, at, sizeof at)) break;
        if (pool_named(at) >= 0) return strcpy(room, at);
    }
    return path;
}
#define FOLLOWED(folder, path) followed(folder, path, (char[PROGRAM_PATH]){0})

/* Return the run's own path for a pool or a device's directory in sysfs, in `room`; any other path is returned
 * unchanged. */
static const char *redirected(int folder, const char *path, char *room, size_t size) {
    static const char *const systems[] = {"/sys/bus/dax/devices/", "/sys/class/dax/", "/sys/dev/char/"};
    const char *run = getenv("CXLEMU_PROGRAM_RUN");
    if (!run || !path) return path;
    const int pool = pool_in(folder, path);
    if (pool >= 0) {
        snprintf(room, size, "%s/file-%d", run, pool);
        return room;
    }
    for (int k = 0; k < 3; k++) {
        if (strncmp(path, systems[k], strlen(systems[k])) != 0) continue;
        snprintf(room, size, "%s/sys/%s", run, path + strlen(systems[k]));
        return room;
    }
    return path;
}

#define REDIRECTED_IN(folder, path) redirected(folder, path, (char[2 * PROGRAM_PATH]){0}, 2 * PROGRAM_PATH)
#define REDIRECTED(path) REDIRECTED_IN(AT_FDCWD, path)

REAL(int, fstatat, int, const char *, struct stat *, int)
REAL(int, fstat, int, struct stat *)

int pool_of_file(int file) {
    struct stat its, ours;
    char path[2 * PROGRAM_PATH];
    KEEPS_ERRNO;
    const char *folder = getenv("CXLEMU_PROGRAM_RUN");
    if (!folder || real_fstat()(file, &its) != 0) return -1;
    for (int pool = 0; pool < (process_joined() ? here.area->options.pools : PROGRAM_POOLS); pool++) {
        snprintf(path, sizeof path, "%s/file-%d", folder, pool);
        if (real_fstatat()(AT_FDCWD, path, &ours, 0) == 0 && ours.st_ino == its.st_ino && ours.st_dev == its.st_dev)
            return process_join() ? pool : -1; /* a process may inherit the file, and open none */
    }
    return -1;
}

bool device_refuses(int pool, const char *what) {
    if (pool < 0 || !process_joined() || !here.area->options.dax[pool]) return false;
    fprintf(stderr, "cxlemu: %s is refused for %s (EINVAL), as Linux refuses it for a device-DAX\n", what,
            here.area->options.path[pool]);
    errno = EINVAL;
    return true;
}

/* --- opening --------------------------------------------------------------------------------------------------------- */

REAL(int, open, const char *, int, ...)
REAL(int, openat, int, const char *, int, ...)

/* Note a file that a program may have meant to be a pool: where none is touched, the driver names it. */
static void note_other(int folder, const char *path, int flags) {
    static int left = 8;
    KEEPS_ERRNO;
    const char *run = getenv("CXLEMU_PROGRAM_RUN");
    char list[2 * PROGRAM_PATH], plain[PROGRAM_PATH + 1];
    if (!run || !path || (flags & O_ACCMODE) != O_RDWR || !plain_path(folder, path, plain, PROGRAM_PATH)) return;
    if (strncmp(plain, run, strlen(run)) == 0) return; /* our own */
    if (__atomic_fetch_sub(&left, 1, __ATOMIC_RELAXED) <= 0) return;
    snprintf(list, sizeof list, "%s/opened", run);
    const long file = syscall(SYS_openat, AT_FDCWD, list, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (file < 0) return;
    strcat(plain, "\n");
    syscall(SYS_write, file, plain, strlen(plain));
    syscall(SYS_close, file);
}

static int opened(int folder, const char *path, int flags, mode_t mode) {
    path = flags & O_NOFOLLOW ? path : FOLLOWED(folder, path);
    const int pool = pool_in(folder, path);
    if (pool < 0) {
        const int file = real_openat()(folder, REDIRECTED(path), flags, mode);
        if (file >= 0) note_other(folder, path, flags);
        return file;
    }
    if (!process_join()) return real_openat()(folder, path, flags, mode);
    const int of_no_effect = here.area->options.dax[pool] ? O_TRUNC : 0;
    const int file = real_openat()(AT_FDCWD, REDIRECTED_IN(folder, path),
                                   flags & ~(O_DIRECT | O_SYNC | O_DSYNC | of_no_effect), mode);
    if (file >= 0 || errno != ENOENT) return file;
    __atomic_fetch_or(&here.area->absent, UINT64_C(1) << pool, __ATOMIC_RELAXED);
    prog_yield(NULL); /* another host may be about to make it */
    errno = ENOENT;
    return file;
}

#define MODE(flags)                        \
    mode_t mode = 0;                       \
    if ((flags) & (O_CREAT | O_TMPFILE)) { \
        va_list rest;                      \
        va_start(rest, flags);             \
        mode = va_arg(rest, mode_t);       \
        va_end(rest);                      \
    }

PROGRAM_EXPORT int open(const char *path, int flags, ...) {
    MODE(flags);
    return opened(AT_FDCWD, path, flags, mode);
}
PROGRAM_EXPORT int open64(const char *path, int flags, ...) {
    MODE(flags);
    return opened(AT_FDCWD, path, flags | O_LARGEFILE, mode);
}
PROGRAM_EXPORT int openat(int folder, const char *path, int flags, ...) {
    MODE(flags);
    return opened(folder, path, flags, mode);
}
PROGRAM_EXPORT int openat64(int folder, const char *path, int flags, ...) {
    MODE(flags);
    return opened(folder, path, flags | O_LARGEFILE, mode);
}
#if defined(__x86_64__)
/* The same as system calls: see syscall() in threads.c. */
long cxlemu_system_call(long number, ...);
long cxlemu_opens(long number, long first, long second, long third, long fourth);
__attribute__((used, visibility("hidden"))) long cxlemu_opens(long number, long first, long second, long third,
                                                              long fourth) {
    if (number == SYS_open) return opened(AT_FDCWD, (const char *)first, (int)second, (mode_t)third);
    const int folder = (int)first;
    const char *path = (const char *)second;
    if (number == SYS_openat) return opened(folder, path, (int)third, (mode_t)fourth);
    const struct open_how *how = (const struct open_how *)third;
    if (pool_in(folder, FOLLOWED(folder, path)) < 0)
        return cxlemu_system_call(number, first, second, third, fourth, 0L, 0L);
    return opened(folder, path, (int)how->flags, (mode_t)how->mode);
}
#endif
PROGRAM_EXPORT int __open_2(const char *path, int flags) { return opened(AT_FDCWD, path, flags, 0); }
PROGRAM_EXPORT int __open64_2(const char *path, int flags) { return opened(AT_FDCWD, path, flags | O_LARGEFILE, 0); }
PROGRAM_EXPORT int creat(const char *path, mode_t mode) {
    return opened(AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, mode);
}

static const char *shared_path(const char *name, char *room, size_t size) {
    snprintf(room, size, "/dev/shm/%s", name + strspn(name, "/"));
    return room;
}
#define SHARED_PATH(name) shared_path(name, (char[PROGRAM_PATH]){0}, PROGRAM_PATH)

PROGRAM_EXPORT int shm_open(const char *name, int flags, mode_t mode) {
    return opened(AT_FDCWD, SHARED_PATH(name), flags | O_CLOEXEC | O_NOFOLLOW, mode);
}

REAL(int, unlink, const char *)
PROGRAM_EXPORT int unlink(const char *path) { return real_unlink()(REDIRECTED(path)); }
PROGRAM_EXPORT int shm_unlink(const char *name) { return real_unlink()(REDIRECTED(SHARED_PATH(name))); }

REAL(FILE *, fopen, const char *, const char *)
PROGRAM_EXPORT FILE *fopen(const char *restrict path, const char *restrict mode) {
    if (pool_named(path) >= 0)
        fprintf(stderr,
                "cxlemu: %s is opened as a stream: what a stream reads or writes is not the pool's: use open, read and "
                "write\n",
                path);
    return real_fopen()(REDIRECTED(path), mode);
}
PROGRAM_EXPORT FILE *fopen64(const char *restrict path, const char *restrict mode) { return fopen(path, mode); }

REAL(int, access, const char *, int)
PROGRAM_EXPORT int access(const char *path, int mode) { return real_access()(REDIRECTED(path), mode); }

REAL(int, truncate, const char *, off_t)
PROGRAM_EXPORT int truncate(const char *path, off_t nbytes) {
    return device_refuses(pool_named(path), "truncate()") ? -1 : real_truncate()(REDIRECTED(path), nbytes);
}

/* --- what a program learns of a device ---------------------------------------------------------------------------- */

static int as_device(int result, int pool, struct stat *found) {
    if (result != 0 || pool < 0 || !process_join() || !here.area->options.dax[pool]) return result;
    found->st_mode = S_IFCHR | (found->st_mode & 07777);
    found->st_rdev = makedev(DAX_MAJOR, (unsigned)pool);
    found->st_size = 0;
    return result;
}

PROGRAM_EXPORT int fstat(int file, struct stat *found) {
    return as_device(real_fstat()(file, found), process_joined() ? pool_of_file(file) : -1, found);
}
PROGRAM_EXPORT int stat(const char *restrict path, struct stat *restrict found) {
    path = FOLLOWED(AT_FDCWD, path);
    return as_device(real_fstatat()(AT_FDCWD, REDIRECTED(path), found, 0), pool_named(path), found);
}
PROGRAM_EXPORT int lstat(const char *restrict path, struct stat *restrict found) {
    return as_device(real_fstatat()(AT_FDCWD, REDIRECTED(path), found, AT_SYMLINK_NOFOLLOW), pool_named(path), found);
}
PROGRAM_EXPORT int fstatat(int folder, const char *restrict path, struct stat *restrict found, int flags) {
    return as_device(real_fstatat()(folder, REDIRECTED_IN(folder, path), found, flags), pool_in(folder, path), found);
}
REAL(int, statx, int, const char *, int, unsigned, struct statx *)
PROGRAM_EXPORT int statx(int folder, const char *restrict path, int flags, unsigned mask,
                         struct statx *restrict found) {
    const int pool = *path ? pool_in(folder, path) : process_joined() ? pool_of_file(folder) : -1;
    const int result = real_statx()(folder, REDIRECTED_IN(folder, path), flags, mask, found);
    if (result != 0 || pool < 0 || !process_join() || !here.area->options.dax[pool]) return result;
    found->stx_mode = (uint16_t)(S_IFCHR | (found->stx_mode & 07777));
    found->stx_rdev_major = DAX_MAJOR, found->stx_rdev_minor = (uint32_t)pool, found->stx_size = 0;
    return result;
}
#if defined(__x86_64__) /* where both are the same struct */
PROGRAM_EXPORT int fstat64(int file, struct stat64 *found) { return fstat(file, (struct stat *)found); }
PROGRAM_EXPORT int stat64(const char *restrict path, struct stat64 *restrict found) {
    return stat(path, (struct stat *)found);
}
PROGRAM_EXPORT int lstat64(const char *restrict path, struct stat64 *restrict found) {
    return lstat(path, (struct stat *)found);
}
PROGRAM_EXPORT int fstatat64(int folder, const char *restrict path, struct stat64 *restrict found, int flags) {
    return fstatat(folder, path, (struct stat *)found, flags);
}
#endif
