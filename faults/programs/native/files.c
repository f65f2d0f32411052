/* System calls on a pool's file: programs map their host's image of it, and read and write through their host's
 * cache. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "bytes.h"
#include "files.h"
#include "pages.h"
#include "paths.h"
#include "real.h"
#include "self.h"

#define HERE __builtin_return_address(0)
enum { DAX_ALIGN = 2 << 20 }; /* as run.py writes into the run's sysfs */

REAL(int, open, const char *, int, ...)
REAL(int, fstat, int, struct stat *)

/* --- mapping --------------------------------------------------------------------------------------------------------- */

REAL(void *, mmap, void *, size_t, int, int, int, off_t)
REAL(int, munmap, void *, size_t)

static void tell_mapping(int kind, const pool_range *range) {
    program_self *me = self_here();
    if (!step_begin(me)) return;
    if (kind == STEP_MAP) here.area->mapped |= UINT64_C(1) << range->pool;
    if (kind == STEP_MAP) image_mapped(range->pool, range->offset / 64, (range->offset + range->nbytes + 63) / 64);
    step_other(me, kind, -1, range, NULL);
    step_end(me);
}

/* Return whether the driver of device-DAX refuses a mapping. It checks size and address, not the offset in the
 * device. */
static bool mapping_refused(int pool, const void *at, size_t nbytes, int flags) {
    char what[128];
    if ((flags & MAP_TYPE) == MAP_PRIVATE) return device_refuses(pool, "a private mapping");
    const uint64_t fixed = flags & (MAP_FIXED | MAP_FIXED_NOREPLACE) ? (uint64_t)(uintptr_t)at : 0;
    if ((nbytes | fixed) % DAX_ALIGN == 0) return false;
    snprintf(what, sizeof what, "mmap() of %zu bytes, not in whole pages of %d MiB,", nbytes, DAX_ALIGN >> 20);
    return device_refuses(pool, what);
}

/* Whether a pool has so many bytes. */
static bool fits(int pool, off_t offset, size_t nbytes) {
    const program_options *options = &here.area->options;
    if (offset >= 0 && (uint64_t)offset + nbytes <= (uint64_t)options->capacity[pool]) return true;
    fprintf(stderr,
            "cxlemu: %s is mapped to byte %llu, but the emulated pool has %lld: give its size, --pool %s=SIZE\n",
            options->path[pool], (unsigned long long)offset + nbytes, (long long)options->capacity[pool],
            options->path[pool]);
    errno = ENOMEM;
    return false;
}

/* Note that a pool lies at an address, which is returned. */
static void *known_mapping(int pool, off_t offset, void *at, size_t nbytes, int prot) {
    const size_t whole = (nbytes + 4095) / 4096 * 4096;
    mapping_remove(at, whole);
    if (!mapping_add(pool, offset, at, whole)) {
        fprintf(stderr, "cxlemu: more than %d mappings of pools in a process\n", MAPPINGS);
        _exit(2);
    }
    if (program_pages_now) program_pages_now->mapped(pool, offset, at, whole, prot);
    const pool_range range = {pool, offset, (int64_t)nbytes};
    tell_mapping(STEP_MAP, &range);
    return at;
}

static void *mapped(int pool, void *at, size_t nbytes, int prot, int flags, off_t offset) {
    char path[2 * PROGRAM_PATH];
    if (mapping_refused(pool, at, nbytes, flags) || !fits(pool, offset, nbytes)) return MAP_FAILED;
    if ((flags & MAP_TYPE) == MAP_PRIVATE)
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
    area_path(path, sizeof path, "pool-%d", pool);
    if (!coherent_map(pool, path, found, offset, (int64_t)nbytes, program_pages_now ? PROT_NONE : prot)) _exit(2);
    return known_mapping(pool, offset, found, nbytes, prot);
}

/* Forget the pools in a range, whose last page goes as a whole. */
static void forget(void *at, size_t nbytes) {
    const size_t whole = (nbytes + 4095) / 4096 * 4096;
    if (!mapping_count) return;
    if (program_pages_now) program_pages_now->unmapped(at, whole);
    mapping_remove(at, whole);
}

PROGRAM_EXPORT void *mmap(void *at, size_t nbytes, int prot, int flags, int file, off_t offset) {
    const int pool = flags & MAP_ANONYMOUS || file < 0 ? -1 : pool_of_file(file);
    if (pool >= 0) return mapped(pool, at, nbytes, prot, flags, offset);
    void *found = real_mmap()(at, nbytes, prot, flags, file, offset);
    if (flags & MAP_FIXED && found != MAP_FAILED) forget(found, nbytes);
    return found;
}
PROGRAM_EXPORT void *mmap64(void *at, size_t nbytes, int prot, int flags, int file, off64_t offset) {
    return mmap(at, nbytes, prot, flags, file, offset);
}

PROGRAM_EXPORT int munmap(void *at, size_t nbytes) {
    pool_range range;
    if (mapping_count && range_in_pool(at, nbytes, &range)) tell_mapping(STEP_UNMAP, &range);
    forget(at, nbytes);
    return real_munmap()(at, nbytes);
}

REAL(void *, mremap, void *, size_t, size_t, int, ...)
PROGRAM_EXPORT void *mremap(void *at, size_t nbytes, size_t wanted, int flags, ...) {
    va_list rest;
    pool_range range;
    va_start(rest, flags);
    void *to = flags & MREMAP_FIXED ? va_arg(rest, void *) : NULL;
    va_end(rest);
    if (!mapping_count || !range_in_pool(at, 1, &range)) {
        void *found = real_mremap()(at, nbytes, wanted, flags, to);
        if (flags & MREMAP_FIXED && found != MAP_FAILED) forget(found, wanted);
        return found;
    }
    if (!fits(range.pool, range.offset, wanted)) return MAP_FAILED;
    const int prot = pools_closed && !pages_allow(at, true) ? PROT_READ : PROT_READ | PROT_WRITE;
    void *found = real_mremap()(at, nbytes, wanted, flags, to);
    if (found != MAP_FAILED && nbytes) forget(at, nbytes);
    return found == MAP_FAILED ? found : known_mapping(range.pool, range.offset, found, wanted, prot);
}

#if defined(__x86_64__)
/* The same as system calls: see syscall() in threads.c. */
long cxlemu_maps(long number, void *at, size_t nbytes, long third, long fourth, long fifth, long sixth);
__attribute__((used, visibility("hidden"))) long cxlemu_maps(long number, void *at, size_t nbytes, long third,
                                                             long fourth, long fifth, long sixth) {
    if (number == SYS_munmap) return munmap(at, nbytes);
    if (number == SYS_mremap) return (long)mremap(at, nbytes, (size_t)third, (int)fourth, (void *)fifth);
    return (long)mmap(at, nbytes, (int)third, (int)fourth, (int)fifth, sixth);
}
#endif

/* The kernel cannot lock pages that are closed to the program, and images need no lock. */
REAL(int, mlock, const void *, size_t)
PROGRAM_EXPORT int mlock(const void *at, size_t nbytes) {
    return mapping_count && prog_in_pool(at, nbytes) ? 0 : real_mlock()(at, nbytes);
}

REAL(int, msync, void *, size_t, int)
PROGRAM_EXPORT int msync(void *at, size_t nbytes, int flags) {
    if (!mapping_count || !prog_in_pool(at, nbytes)) return real_msync()(at, nbytes, flags);
    prog_msync(at, nbytes, HERE);
    return 0;
}

/* --- system calls on a pool ----------------------------------------------------------------------------------------------- */

/* Read or write the pool's file: the kernel loads or stores through this host's cache. Return the number of bytes, or
 * -1. */
static ssize_t file_step(int pool, void *bytes, size_t nbytes, off_t at, bool writes, const void *pc) {
    program_self *me = self_here();
    const int64_t capacity = here.area->options.capacity[pool];
    if (at >= capacity || !me) return 0;
    if ((int64_t)nbytes > capacity - at) nbytes = (size_t)(capacity - at);
    uint8_t *image = image_of(here.host, pool)->cache.data + at;
    if (!mapping_add(pool, at, image, nbytes)) return -1;
    if (writes) prog_system_writes(image, nbytes, pc);
    else prog_system_reads(image, nbytes, pc);
    mapping_remove(image, nbytes);
    if (writes) memcpy(image, bytes, nbytes);
    else memcpy(bytes, image, nbytes);
    return (ssize_t)nbytes;
}

REAL(ssize_t, pread, int, void *, size_t, off_t)
REAL(ssize_t, pwrite, int, const void *, size_t, off_t)
REAL(ssize_t, read, int, void *, size_t)
REAL(ssize_t, write, int, const void *, size_t)

REAL(int, ftruncate, int, off_t)
PROGRAM_EXPORT int ftruncate(int file, off_t nbytes) {
    return self && device_refuses(pool_of_file(file), "ftruncate()") ? -1 : real_ftruncate()(file, nbytes);
}
PROGRAM_EXPORT int ftruncate64(int file, off64_t nbytes) { return ftruncate(file, nbytes); }

/* A device-DAX has no position, and does not report its size. */
REAL(off_t, lseek, int, off_t, int)
PROGRAM_EXPORT off_t lseek(int file, off_t offset, int whence) {
    const int pool = self ? pool_of_file(file) : -1;
    return pool >= 0 && here.area->options.dax[pool] ? 0 : real_lseek()(file, offset, whence);
}
PROGRAM_EXPORT off64_t lseek64(int file, off64_t offset, int whence) { return lseek(file, offset, whence); }

/* Return how many bytes of a range lie in the file, which a write lengthens. */
static size_t room_in(int file, off_t at, size_t nbytes, bool writes) {
    struct stat its;
    if (real_fstat()(file, &its) != 0) return 0;
    if (writes && at + (off_t)nbytes > its.st_size && real_ftruncate()(file, at + (off_t)nbytes) != 0) return 0;
    if (writes || at + (off_t)nbytes <= its.st_size) return nbytes;
    return at < its.st_size ? (size_t)(its.st_size - at) : 0;
}

static ssize_t file_moved(int pool, int file, void *bytes, size_t nbytes, off_t at, bool writes, const void *pc) {
    if (device_refuses(pool, writes ? "write()" : "read()")) return -1;
    return file_step(pool, bytes, room_in(file, at, nbytes, writes), at, writes, pc);
}

ssize_t file_at(int file, void *bytes, size_t nbytes, off_t at, bool writes, const void *pc) {
    const int pool = self ? pool_of_file(file) : -1;
    if (pool >= 0) return file_moved(pool, file, bytes, nbytes, at, writes, pc);
    if (mapping_count && writes) prog_system_reads(bytes, nbytes, pc);
    else if (mapping_count) prog_system_writes(bytes, nbytes, pc);
    return writes ? real_pwrite()(file, reachable(bytes), nbytes, at)
                  : real_pread()(file, reachable(bytes), nbytes, at);
}
PROGRAM_EXPORT ssize_t pread(int file, void *into, size_t nbytes, off_t at) {
    return file_at(file, into, nbytes, at, false, HERE);
}
PROGRAM_EXPORT ssize_t pwrite(int file, const void *from, size_t nbytes, off_t at) {
    return file_at(file, (void *)(uintptr_t)from, nbytes, at, true, HERE);
}
PROGRAM_EXPORT ssize_t pread64(int file, void *into, size_t nbytes, off64_t at) {
    return pread(file, into, nbytes, at);
}
PROGRAM_EXPORT ssize_t pwrite64(int file, const void *from, size_t nbytes, off64_t at) {
    return pwrite(file, from, nbytes, at);
}

static ssize_t file_streamed(int pool, int file, void *bytes, size_t nbytes, bool writes, const void *pc) {
    const off_t at = real_lseek()(file, 0, SEEK_CUR);
    const ssize_t done = file_moved(pool, file, bytes, nbytes, at, writes, pc);
    if (done > 0) real_lseek()(file, done, SEEK_CUR);
    return done;
}

PROGRAM_EXPORT ssize_t read(int file, void *into, size_t nbytes) {
    const int pool = self ? pool_of_file(file) : -1;
    if (pool >= 0) return file_streamed(pool, file, into, nbytes, false, HERE);
    if (self) prog_wait_readable(file, HERE);
    if (mapping_count) prog_system_writes(into, nbytes, HERE);
    return real_read()(file, reachable(into), nbytes);
}
PROGRAM_EXPORT ssize_t write(int file, const void *from, size_t nbytes) {
    const int pool = self ? pool_of_file(file) : -1;
    if (pool >= 0) return file_streamed(pool, file, (void *)(uintptr_t)from, nbytes, true, HERE);
    if (mapping_count) prog_system_reads(from, nbytes, HERE);
    return real_write()(file, reachable(from), nbytes);
}

REAL(size_t, fread, void *, size_t, size_t, FILE *)
PROGRAM_EXPORT size_t fread(void *restrict into, size_t size, size_t count, FILE *restrict file) {
    if (mapping_count) prog_system_writes(into, size * count, HERE);
    return real_fread()(reachable(into), size, count, file);
}
/* A line ends with the first newline, or where the file does: then the newlines of before are behind the zero. */
REAL(char *, fgets, char *, int, FILE *)
PROGRAM_EXPORT char *fgets(char *restrict into, int room, FILE *restrict file) {
    if (outside_pools(into) || room <= 0) return real_fgets()(into, room, file);
    char *kept = malloc((size_t)room), *line = kept ? real_fgets()(memset(kept, '\n', (size_t)room), room, file) : NULL;
    const char *end = line ? memchr(line, '\n', (size_t)room) : NULL;
    const size_t its = end ? (size_t)(end - line) : (size_t)room;
    if (line) moved(into, line, end && its + 1 < (size_t)room && !end[1] ? its + 2 : its, HERE);
    free(kept);
    return line ? into : NULL;
}
REAL(size_t, fwrite, const void *, size_t, size_t, FILE *)
PROGRAM_EXPORT size_t fwrite(const void *restrict from, size_t size, size_t count, FILE *restrict file) {
    if (mapping_count) prog_system_reads(from, size * count, HERE);
    return real_fwrite()(reachable(from), size, count, file);
}
REAL(ssize_t, recv, int, void *, size_t, int)
PROGRAM_EXPORT ssize_t recv(int file, void *into, size_t nbytes, int flags) {
    if (self && !(flags & MSG_DONTWAIT)) prog_wait_readable(file, HERE);
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
/* Tell what the system has stored to parts of which each was announced: a thread announces one store at a time, so only the last one's
 * is told by itself. */
static ssize_t vector_done(const struct iovec *parts, int count, bool stores, ssize_t done, const void *pc) {
    ssize_t left = stores && mapping_count ? done : 0;
    for (int k = 0; k < count - 1 && left > 0; left -= (ssize_t)parts[k++].iov_len)
        prog_system_wrote(parts[k].iov_base, parts[k].iov_len, pc);
    return done;
}
/* Return the parts at addresses that this library reaches; more than PARTS are left as they are. */
enum { PARTS = 1024 };
#define REACHABLE(parts, count) \
    reachable_parts(parts, count, pools_closed &&count <= PARTS ? (struct iovec[PARTS]){{0}} : NULL)
static const struct iovec *reachable_parts(const struct iovec *parts, int count, struct iovec *room) {
    for (int k = 0; room && k < count; k++) room[k] = (struct iovec){reachable(parts[k].iov_base), parts[k].iov_len};
    return room ? room : parts;
}
/* Read or write the parts of a pool's file, from the byte `at` on. */
static ssize_t parts_moved(int pool, int file, const struct iovec *parts, int count, off_t at, bool writes,
                           const void *pc) {
    ssize_t all = 0, done = 0;
    for (int k = 0; k < count && (k == 0 || done == (ssize_t)parts[k - 1].iov_len); k++, all += done > 0 ? done : 0)
        done = file_moved(pool, file, parts[k].iov_base, parts[k].iov_len, at + all, writes, pc);
    return all || done >= 0 ? all : done;
}

/* The forms with a position, and those without, which move it. */
#define VECTOR(name, writes)                                                                                           \
    REAL(ssize_t, name, int, const struct iovec *, int)                                                                \
    PROGRAM_EXPORT ssize_t name(int file, const struct iovec *parts, int count) {                                      \
        const int pool = self ? pool_of_file(file) : -1;                                                               \
        if (pool >= 0) {                                                                                               \
            const ssize_t done = parts_moved(pool, file, parts, count, real_lseek()(file, 0, SEEK_CUR), writes, HERE); \
            if (done > 0) real_lseek()(file, done, SEEK_CUR);                                                          \
            return done;                                                                                               \
        }                                                                                                              \
        vector_step(parts, count, !(writes), HERE);                                                                    \
        const ssize_t done = real_##name()(file, REACHABLE(parts, count), count);                                      \
        return vector_done(parts, count, !(writes), done, HERE);                                                       \
    }                                                                                                                  \
    REAL(ssize_t, p##name, int, const struct iovec *, int, off_t)                                                      \
    PROGRAM_EXPORT ssize_t p##name(int file, const struct iovec *parts, int count, off_t at) {                         \
        const int pool = self ? pool_of_file(file) : -1;                                                               \
        if (pool >= 0) return parts_moved(pool, file, parts, count, at, writes, HERE);                                 \
        vector_step(parts, count, !(writes), HERE);                                                                    \
        const ssize_t done = real_p##name()(file, REACHABLE(parts, count), count, at);                                 \
        return vector_done(parts, count, !(writes), done, HERE);                                                       \
    }                                                                                                                  \
    PROGRAM_EXPORT ssize_t p##name##64(int file, const struct iovec *parts, int count, off64_t at) {                   \
        return p##name(file, parts, count, at);                                                                        \
    }                                                                                                                  \
    REAL(ssize_t, p##name##2, int, const struct iovec *, int, off_t, int)                                              \
    PROGRAM_EXPORT ssize_t p##name##2(int file, const struct iovec *parts, int count, off_t at, int flags) {           \
        const int pool = self ? pool_of_file(file) : -1;                                                               \
        if (pool >= 0) return at == -1 ? name(file, parts, count) : p##name(file, parts, count, at);                   \
        vector_step(parts, count, !(writes), HERE);                                                                    \
        const ssize_t done = real_p##name##2()(file, REACHABLE(parts, count), count, at, flags);                       \
        return vector_done(parts, count, !(writes), done, HERE);                                                       \
    }                                                                                                                  \
    PROGRAM_EXPORT ssize_t p##name##64v2(int file, const struct iovec *parts, int count, off64_t at, int flags) {      \
        return p##name##2(file, parts, count, at, flags);                                                              \
    }
VECTOR(readv, false)
VECTOR(writev, true)

REAL(ssize_t, recvfrom, int, void *, size_t, int, struct sockaddr *, socklen_t *)
PROGRAM_EXPORT ssize_t recvfrom(int file, void *restrict into, size_t nbytes, int flags, struct sockaddr *restrict from,
                                socklen_t *restrict length) {
    if (self && !(flags & MSG_DONTWAIT)) prog_wait_readable(file, HERE);
    if (mapping_count) prog_system_writes(into, nbytes, HERE);
    return real_recvfrom()(file, reachable(into), nbytes, flags, from, length);
}
REAL(ssize_t, sendto, int, const void *, size_t, int, const struct sockaddr *, socklen_t)
PROGRAM_EXPORT ssize_t sendto(int file, const void *from, size_t nbytes, int flags, const struct sockaddr *to,
                              socklen_t length) {
    if (mapping_count) prog_system_reads(from, nbytes, HERE);
    return real_sendto()(file, reachable(from), nbytes, flags, to, length);
}
REAL(ssize_t, recvmsg, int, struct msghdr *, int)
PROGRAM_EXPORT ssize_t recvmsg(int file, struct msghdr *message, int flags) {
    const int count = (int)message->msg_iovlen;
    struct iovec *parts = message->msg_iov;
    if (self && !(flags & MSG_DONTWAIT)) prog_wait_readable(file, HERE);
    vector_step(parts, count, true, HERE);
    message->msg_iov = (struct iovec *)(uintptr_t)REACHABLE(parts, count);
    const ssize_t done = real_recvmsg()(file, message, flags);
    message->msg_iov = parts;
    return vector_done(parts, count, true, done, HERE);
}
REAL(ssize_t, sendmsg, int, const struct msghdr *, int)
PROGRAM_EXPORT ssize_t sendmsg(int file, const struct msghdr *message, int flags) {
    const int count = (int)message->msg_iovlen;
    struct msghdr its = *message;
    vector_step(its.msg_iov, count, false, HERE);
    its.msg_iov = (struct iovec *)(uintptr_t)REACHABLE(its.msg_iov, count);
    return real_sendmsg()(file, &its, flags);
}

/* The kernel copies between files past every cache; programs then fall back to read and write. */
static bool copy_refused(int from, int to) {
    if (!self || (pool_of_file(from) < 0 && pool_of_file(to) < 0)) return false;
    fprintf(stderr,
            "cxlemu: sendfile(), splice() and copy_file_range() are refused for a pool (EINVAL): read and write it\n");
    errno = EINVAL;
    return true;
}
REAL(ssize_t, sendfile, int, int, off_t *, size_t)
PROGRAM_EXPORT ssize_t sendfile(int to, int from, off_t *at, size_t nbytes) {
    return copy_refused(from, to) ? -1 : real_sendfile()(to, from, at, nbytes);
}
PROGRAM_EXPORT ssize_t sendfile64(int to, int from, off64_t *at, size_t nbytes) {
    return sendfile(to, from, at, nbytes);
}
REAL(ssize_t, copy_file_range, int, off64_t *, int, off64_t *, size_t, unsigned)
PROGRAM_EXPORT ssize_t copy_file_range(int from, off64_t *at, int to, off64_t *into, size_t nbytes, unsigned flags) {
    return copy_refused(from, to) ? -1 : real_copy_file_range()(from, at, to, into, nbytes, flags);
}
REAL(ssize_t, splice, int, off64_t *, int, off64_t *, size_t, unsigned)
PROGRAM_EXPORT ssize_t splice(int from, off64_t *at, int to, off64_t *into, size_t nbytes, unsigned flags) {
    return copy_refused(from, to) ? -1 : real_splice()(from, at, to, into, nbytes, flags);
}
