/* Programs open a pool by its path, and map it: what they get is their host's image of it. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/uio.h>
#include <unistd.h>

#include "real.h"
#include "self.h"

#define HERE __builtin_return_address(0)
enum { DAX_MAJOR = 252 };

/* --- paths ----------------------------------------------------------------------------------------------------------- */

/* A path without ".", ".." and what it is relative to; links stay. */
static bool plain_path(const char *path, char *plain, size_t size) {
    char whole[2 * PROGRAM_PATH];
    size_t length = 0;
    if (path[0] == '/') snprintf(whole, sizeof whole, "%s", path);
    else if (getcwd(whole, sizeof whole / 2)) snprintf(whole + strlen(whole), sizeof whole / 2, "/%s", path);
    else return false;
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

/* The pool that a path names, -1 for none: CXLEMU_PROGRAM_POOLS lists them, separated by ':'. */
static int pool_named(const char *path) {
    const char *pools = getenv("CXLEMU_PROGRAM_POOLS");
    char plain[PROGRAM_PATH];
    if (!pools || !path || !plain_path(path, plain, sizeof plain)) return -1;
    const size_t length = strlen(plain);
    for (int pool = 0; *pools; pool++) {
        const size_t its = strcspn(pools, ":");
        if (its == length && strncmp(pools, plain, length) == 0) return pool;
        pools += its + (pools[its] == ':');
    }
    return -1;
}

/* Where the run keeps what a path names; the path itself where that is nobody's business. */
static const char *redirected(const char *path, char *room, size_t size) {
    static const char *const systems[] = {"/sys/bus/dax/devices/", "/sys/class/dax/", "/sys/dev/char/"};
    const char *folder = getenv("CXLEMU_PROGRAM_RUN");
    if (!folder || !path) return path;
    const int pool = pool_named(path);
    if (pool >= 0) {
        snprintf(room, size, "%s/file-%d", folder, pool);
        return room;
    }
    for (int k = 0; k < 3; k++) {
        if (strncmp(path, systems[k], strlen(systems[k])) != 0) continue;
        snprintf(room, size, "%s/sys/%s", folder, path + strlen(systems[k]));
        return room;
    }
    return path;
}

#define REDIRECTED(path) redirected(path, (char[2 * PROGRAM_PATH]){0}, 2 * PROGRAM_PATH)

REAL(int, fstatat, int, const char *, struct stat *, int)
REAL(int, fstat, int, struct stat *)

static int pool_of_file(int file) {
    struct stat its, ours;
    char path[2 * PROGRAM_PATH];
    if (!process_joined() || real_fstat()(file, &its) != 0) return -1;
    for (int pool = 0; pool < here.area->options.pools; pool++) {
        area_path(path, sizeof path, "file-%d", pool);
        if (real_fstatat()(AT_FDCWD, path, &ours, 0) == 0 && ours.st_ino == its.st_ino && ours.st_dev == its.st_dev)
            return pool;
    }
    return -1;
}

/* --- opening --------------------------------------------------------------------------------------------------------- */

REAL(int, open, const char *, int, ...)
REAL(int, openat, int, const char *, int, ...)

static int opened(int folder, const char *path, int flags, mode_t mode) {
    const int pool = pool_named(path);
    if (pool < 0) return real_openat()(folder, REDIRECTED(path), flags, mode);
    if (!process_join()) return real_openat()(folder, path, flags, mode);
    return real_openat()(AT_FDCWD, REDIRECTED(path), flags & ~(O_DIRECT | O_SYNC | O_DSYNC), mode);
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
    return real_fopen()(REDIRECTED(path), mode);
}
PROGRAM_EXPORT FILE *fopen64(const char *restrict path, const char *restrict mode) {
    return real_fopen()(REDIRECTED(path), mode);
}

REAL(int, access, const char *, int)
PROGRAM_EXPORT int access(const char *path, int mode) { return real_access()(REDIRECTED(path), mode); }

REAL(int, truncate, const char *, off_t)
PROGRAM_EXPORT int truncate(const char *path, off_t nbytes) { return real_truncate()(REDIRECTED(path), nbytes); }

/* --- what a program is told of a device --------------------------------------------------------------------------------- */

static int as_device(int result, int pool, struct stat *found) {
    if (result != 0 || pool < 0 || !process_joined() || !here.area->options.dax[pool]) return result;
    found->st_mode = S_IFCHR | (found->st_mode & 07777);
    found->st_rdev = makedev(DAX_MAJOR, (unsigned)pool);
    found->st_size = 0;
    return result;
}

PROGRAM_EXPORT int fstat(int file, struct stat *found) {
    return as_device(real_fstat()(file, found), process_joined() ? pool_of_file(file) : -1, found);
}
PROGRAM_EXPORT int stat(const char *restrict path, struct stat *restrict found) {
    return as_device(real_fstatat()(AT_FDCWD, REDIRECTED(path), found, 0), pool_named(path), found);
}
PROGRAM_EXPORT int lstat(const char *restrict path, struct stat *restrict found) {
    return as_device(real_fstatat()(AT_FDCWD, REDIRECTED(path), found, AT_SYMLINK_NOFOLLOW), pool_named(path), found);
}
PROGRAM_EXPORT int fstatat(int folder, const char *restrict path, struct stat *restrict found, int flags) {
    return as_device(real_fstatat()(folder, REDIRECTED(path), found, flags), pool_named(path), found);
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

/* --- mapping --------------------------------------------------------------------------------------------------------- */

REAL(void *, mmap, void *, size_t, int, int, int, off_t)
REAL(int, munmap, void *, size_t)

static void tell_mapping(int kind, const pool_range *range) {
    program_self *me = self_here();
    if (!step_begin(me)) return;
    if (kind == STEP_MAP) image_mapped(range->pool, range->offset / 64, (range->offset + range->nbytes + 63) / 64);
    step_other(me, kind, -1, range);
    step_end(me);
}

static void *mapped(int pool, void *at, size_t nbytes, int prot, int flags, off_t offset) {
    char path[2 * PROGRAM_PATH];
    if (offset < 0 || (uint64_t)offset + nbytes > (uint64_t)here.area->options.capacity[pool]) {
        fprintf(stderr,
                "cxlemu: %s is mapped to byte %llu, but the emulated pool has %lld: give its size, --pool %s=SIZE\n",
                here.area->options.path[pool], (unsigned long long)offset + nbytes,
                (long long)here.area->options.capacity[pool], here.area->options.path[pool]);
        errno = ENOMEM;
        return MAP_FAILED;
    }
    if (flags & MAP_PRIVATE && (flags & MAP_TYPE) == MAP_PRIVATE)
        fprintf(stderr, "cxlemu: a private mapping of %s is taken for a shared one\n", here.area->options.path[pool]);
    area_path(path, sizeof path, "host-%d-%d.data", here.host, pool);
    const int file = real_open()(path, O_RDWR | O_CLOEXEC);
    const int kept = flags & (MAP_FIXED | MAP_FIXED_NOREPLACE | MAP_POPULATE);
    if (!at) at = area_far_from_code(nbytes);
    void *found = real_mmap()(at, nbytes, program_pages_now ? PROT_NONE : prot, MAP_SHARED | MAP_NORESERVE | kept, file,
                              offset);
    const int saved = errno;
    close(file);
    errno = saved;
    if (found == MAP_FAILED) return found;
    const size_t whole = (nbytes + 4095) / 4096 * 4096;
    mapping_remove(found, whole);
    if (!mapping_add(pool, offset, found, whole)) {
        fprintf(stderr, "cxlemu: more than %d mappings of pools in a process\n", MAPPINGS);
        _exit(2);
    }
    if (program_pages_now) program_pages_now->mapped(pool, offset, found, whole, prot);
    const pool_range range = {pool, offset, (int64_t)nbytes};
    tell_mapping(STEP_MAP, &range);
    return found;
}

PROGRAM_EXPORT void *mmap(void *at, size_t nbytes, int prot, int flags, int file, off_t offset) {
    const int pool = flags & MAP_ANONYMOUS || file < 0 ? -1 : pool_of_file(file);
    if (pool >= 0) return mapped(pool, at, nbytes, prot, flags, offset);
    void *found = real_mmap()(at, nbytes, prot, flags, file, offset);
    if (mapping_count && flags & MAP_FIXED && found != MAP_FAILED && prog_in_pool(found, nbytes)) {
        if (program_pages_now) program_pages_now->unmapped(found, nbytes);
        mapping_remove(found, nbytes);
    }
    return found;
}
PROGRAM_EXPORT void *mmap64(void *at, size_t nbytes, int prot, int flags, int file, off64_t offset) {
    return mmap(at, nbytes, prot, flags, file, offset);
}

PROGRAM_EXPORT int munmap(void *at, size_t nbytes) {
    pool_range range;
    if (mapping_count && range_in_pool(at, nbytes, &range)) {
        tell_mapping(STEP_UNMAP, &range);
        if (program_pages_now) program_pages_now->unmapped(at, nbytes);
        mapping_remove(at, nbytes);
    }
    return real_munmap()(at, nbytes);
}

REAL(int, msync, void *, size_t, int)
PROGRAM_EXPORT int msync(void *at, size_t nbytes, int flags) {
    if (!mapping_count || !prog_in_pool(at, nbytes)) return real_msync()(at, nbytes, flags);
    prog_msync(at, nbytes, HERE);
    return 0;
}

/* --- system calls on a pool ----------------------------------------------------------------------------------------------- */

/* read and write of the pool's file: the kernel loads and stores through this host's cache. */
static ssize_t file_step(int pool, void *bytes, size_t nbytes, off_t at, bool writes) {
    program_self *me = self_here();
    const int64_t capacity = here.area->options.capacity[pool];
    if (at >= capacity || !me) return 0;
    if ((int64_t)nbytes > capacity - at) nbytes = (size_t)(capacity - at);
    uint8_t *image = image_of(here.host, pool)->cache.data + at;
    if (!mapping_add(pool, at, image, nbytes)) return -1;
    if (writes) prog_system_writes(image, nbytes, HERE);
    else prog_system_reads(image, nbytes, HERE);
    mapping_remove(image, nbytes);
    if (writes) memcpy(image, bytes, nbytes);
    else memcpy(bytes, image, nbytes);
    return (ssize_t)nbytes;
}

REAL(ssize_t, pread, int, void *, size_t, off_t)
REAL(ssize_t, pwrite, int, const void *, size_t, off_t)
REAL(ssize_t, read, int, void *, size_t)
REAL(ssize_t, write, int, const void *, size_t)

/* How much of a range the file has: a write may lengthen it. */
static size_t room_in(int file, off_t at, size_t nbytes, bool writes) {
    struct stat its;
    if (real_fstat()(file, &its) != 0) return 0;
    if (writes && at + (off_t)nbytes > its.st_size && ftruncate(file, at + (off_t)nbytes) != 0) return 0;
    if (writes || at + (off_t)nbytes <= its.st_size) return nbytes;
    return at < its.st_size ? (size_t)(its.st_size - at) : 0;
}

static ssize_t file_moved(int pool, int file, void *bytes, size_t nbytes, off_t at, bool writes) {
    return file_step(pool, bytes, room_in(file, at, nbytes, writes), at, writes);
}

PROGRAM_EXPORT ssize_t pread(int file, void *into, size_t nbytes, off_t at) {
    const int pool = self ? pool_of_file(file) : -1;
    if (pool >= 0) return file_moved(pool, file, into, nbytes, at, false);
    if (mapping_count) prog_system_writes(into, nbytes, HERE);
    return real_pread()(file, reachable(into), nbytes, at);
}
PROGRAM_EXPORT ssize_t pwrite(int file, const void *from, size_t nbytes, off_t at) {
    const int pool = self ? pool_of_file(file) : -1;
    if (pool >= 0) return file_moved(pool, file, (void *)(uintptr_t)from, nbytes, at, true);
    if (mapping_count) prog_system_reads(from, nbytes, HERE);
    return real_pwrite()(file, reachable(from), nbytes, at);
}
PROGRAM_EXPORT ssize_t pread64(int file, void *into, size_t nbytes, off64_t at) {
    return pread(file, into, nbytes, at);
}
PROGRAM_EXPORT ssize_t pwrite64(int file, const void *from, size_t nbytes, off64_t at) {
    return pwrite(file, from, nbytes, at);
}

static ssize_t file_streamed(int pool, int file, void *bytes, size_t nbytes, bool writes) {
    const off_t at = lseek(file, 0, SEEK_CUR);
    const ssize_t done = file_moved(pool, file, bytes, nbytes, at, writes);
    if (done > 0) lseek(file, done, SEEK_CUR);
    return done;
}

PROGRAM_EXPORT ssize_t read(int file, void *into, size_t nbytes) {
    const int pool = self ? pool_of_file(file) : -1;
    if (pool >= 0) return file_streamed(pool, file, into, nbytes, false);
    if (self) prog_wait_readable(file);
    if (mapping_count) prog_system_writes(into, nbytes, HERE);
    return real_read()(file, reachable(into), nbytes);
}
PROGRAM_EXPORT ssize_t write(int file, const void *from, size_t nbytes) {
    const int pool = self ? pool_of_file(file) : -1;
    if (pool >= 0) return file_streamed(pool, file, (void *)(uintptr_t)from, nbytes, true);
    if (mapping_count) prog_system_reads(from, nbytes, HERE);
    return real_write()(file, reachable(from), nbytes);
}

REAL(size_t, fread, void *, size_t, size_t, FILE *)
PROGRAM_EXPORT size_t fread(void *restrict into, size_t size, size_t count, FILE *restrict file) {
    if (mapping_count) prog_system_writes(into, size * count, HERE);
    return real_fread()(reachable(into), size, count, file);
}
REAL(size_t, fwrite, const void *, size_t, size_t, FILE *)
PROGRAM_EXPORT size_t fwrite(const void *restrict from, size_t size, size_t count, FILE *restrict file) {
    if (mapping_count) prog_system_reads(from, size * count, HERE);
    return real_fwrite()(reachable(from), size, count, file);
}
REAL(ssize_t, recv, int, void *, size_t, int)
PROGRAM_EXPORT ssize_t recv(int file, void *into, size_t nbytes, int flags) {
    if (self) prog_wait_readable(file);
    if (mapping_count) prog_system_writes(into, nbytes, HERE);
    return real_recv()(file, reachable(into), nbytes, flags);
}
REAL(ssize_t, send, int, const void *, size_t, int)
PROGRAM_EXPORT ssize_t send(int file, const void *from, size_t nbytes, int flags) {
    if (mapping_count) prog_system_reads(from, nbytes, HERE);
    return real_send()(file, reachable(from), nbytes, flags);
}

static void vector_step(const struct iovec *parts, int count, bool stores, const void *pc) {
    for (int k = 0; mapping_count && k < count; k++) {
        if (stores) prog_system_writes(parts[k].iov_base, parts[k].iov_len, pc);
        else prog_system_reads(parts[k].iov_base, parts[k].iov_len, pc);
    }
}
/* The parts as this library reaches them; too many go as they are. */
enum { PARTS = 1024 };
#define REACHABLE(parts, count) \
    reachable_parts(parts, count, pools_closed &&count <= PARTS ? (struct iovec[PARTS]){{0}} : NULL)
static const struct iovec *reachable_parts(const struct iovec *parts, int count, struct iovec *room) {
    for (int k = 0; room && k < count; k++) room[k] = (struct iovec){reachable(parts[k].iov_base), parts[k].iov_len};
    return room ? room : parts;
}
REAL(ssize_t, readv, int, const struct iovec *, int)
PROGRAM_EXPORT ssize_t readv(int file, const struct iovec *parts, int count) {
    vector_step(parts, count, true, HERE);
    return real_readv()(file, REACHABLE(parts, count), count);
}
REAL(ssize_t, writev, int, const struct iovec *, int)
PROGRAM_EXPORT ssize_t writev(int file, const struct iovec *parts, int count) {
    vector_step(parts, count, false, HERE);
    return real_writev()(file, REACHABLE(parts, count), count);
}
