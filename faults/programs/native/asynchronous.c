/* Reads and writes that the kernel makes while the program goes on. POSIX aio of a regular file is done where it is asked for. What
 * io_submit and io_uring read from a pool is loaded where it is submitted; what they store there by the time the system call returns
 * is a store of its caller, and what arrives later one at an unknown place. */
#define _GNU_SOURCE
#include <aio.h>
#include <errno.h>
#include <linux/aio_abi.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "asynchronous.h"
#include "files.h"
#include "paths.h"
#include "real.h"
#include "self.h"

#define HERE __builtin_return_address(0)

/* --- POSIX aio ------------------------------------------------------------------------------------------------------- */

static void *notified(void *raw) {
    const struct sigevent *how = raw;
    how->sigev_notify_function(how->sigev_value);
    free(raw);
    return NULL;
}

/* Tell the program that an operation has ended, as it asked for. */
static void notify(const struct sigevent *how) {
    siginfo_t info = {.si_signo = how->sigev_signo, .si_code = SI_ASYNCIO};
    info.si_pid = getpid(), info.si_uid = getuid(), info.si_value = how->sigev_value;
    if (how->sigev_notify == SIGEV_SIGNAL) syscall(SYS_rt_sigqueueinfo, getpid(), how->sigev_signo, &info);
    if (how->sigev_notify != SIGEV_THREAD) return;
    pthread_t thread;
    struct sigevent *its = malloc(sizeof *its);
    if (!its) abort();
    *its = *how;
    if (pthread_create(&thread, how->sigev_notify_attributes, notified, its) == 0) pthread_detach(thread);
}

/* Do an operation on a pool at once; false where it is none. */
static bool done_at_once(struct aiocb *asked, bool writes, const void *pc) {
    struct stat its;
    const bool of_pool = self && (pool_of_file(asked->aio_fildes) >= 0 ||
                                  prog_in_pool((void *)(uintptr_t)asked->aio_buf, asked->aio_nbytes));
    if (!of_pool || fstat(asked->aio_fildes, &its) != 0 || !S_ISREG(its.st_mode)) return false;
    errno = 0;
    asked->__return_value = file_at(asked->aio_fildes, (void *)(uintptr_t)asked->aio_buf, asked->aio_nbytes,
                                    asked->aio_offset, writes, pc);
    asked->__error_code = asked->__return_value < 0 ? errno : 0;
    return true;
}

#define AIO(name, writes)                                                    \
    REAL(int, name, struct aiocb *)                                          \
    PROGRAM_EXPORT int name(struct aiocb *asked) {                           \
        if (!done_at_once(asked, writes, HERE)) return real_##name()(asked); \
        notify(&asked->aio_sigevent);                                        \
        return 0;                                                            \
    }                                                                        \
    PROGRAM_EXPORT int name##64(struct aiocb64 * asked) __attribute__((alias(#name)));
AIO(aio_read, false)
AIO(aio_write, true)

REAL(int, lio_listio, int, struct aiocb *const *, int, struct sigevent *)
PROGRAM_EXPORT int lio_listio(int mode, struct aiocb *const *list, int count, struct sigevent *how) {
    int *asked = calloc((size_t)count + 1, sizeof *asked), failed = 0;
    if (!asked) abort();
    for (int k = 0; k < count; k++) {
        if (!list[k]) continue;
        asked[k] = list[k]->aio_lio_opcode;
        if (asked[k] == LIO_NOP || !done_at_once(list[k], asked[k] == LIO_WRITE, HERE)) continue;
        failed |= list[k]->__error_code;
        notify(&list[k]->aio_sigevent);
        list[k]->aio_lio_opcode = LIO_NOP; /* for the C library */
    }
    const int done = real_lio_listio()(mode, list, count, how);
    for (int k = 0; k < count; k++)
        if (list[k]) list[k]->aio_lio_opcode = asked[k];
    free(asked);
    if (done == 0 && failed && mode == LIO_WAIT) errno = EIO;
    return done == 0 && failed && mode == LIO_WAIT ? -1 : done;
}
PROGRAM_EXPORT int lio_listio64(int mode, struct aiocb64 *const *list, int count, struct sigevent *how)
    __attribute__((alias("lio_listio")));

/* --- what the kernel is given ---------------------------------------------------------------------------------------- */

#if defined(__x86_64__)

/* An operation under way: where its address stands, and what the program wrote there. */
typedef struct {
    uint64_t *at, given;
    struct iovec one, *parts, *reached;
    size_t count;
    bool stores;
} operation;

static long raw(long number, const long *words) {
    const long done = cxlemu_system_call(number, words[0], words[1], words[2], words[3], words[4], words[5]);
    return done < 0 ? -errno : done;
}

/* Announce the loads of an operation on `nbytes` at *at or, with `vector`, on so many parts; let the kernel reach them. */
static operation begin(uint64_t *at, size_t nbytes, bool vector, bool stores, const void *pc) {
    operation o = {.at = at, .given = *at, .count = vector ? nbytes : 1, .stores = stores};
    void *given = (void *)(uintptr_t)*at;
    o.one = (struct iovec){given, nbytes}, o.parts = vector ? given : NULL;
    if (vector && pools_closed) o.reached = calloc(nbytes + 1, sizeof *o.reached);
    for (size_t k = 0; k < o.count; k++) {
        const struct iovec part = vector ? o.parts[k] : o.one;
        if (!stores) prog_system_reads(part.iov_base, part.iov_len, pc);
        else if (program_pages_now) program_pages_now->touch(part.iov_base, part.iov_len);
        if (o.reached) o.reached[k] = (struct iovec){reachable(part.iov_base), part.iov_len};
    }
    if (o.reached) *at = (uintptr_t)o.reached;
    else if (!vector) *at = (uintptr_t)reachable(given);
    return o;
}

static void end(operation *o, const void *pc) {
    *o->at = o->given;
    free(o->reached);
    for (size_t k = 0; o->stores && k < o->count; k++) {
        const struct iovec part = o->parts ? o->parts[k] : o->one;
        prog_system_wrote(part.iov_base, part.iov_len, pc);
    }
}

static long submit(const long *words, const void *pc) {
    struct iocb **list = (struct iocb **)words[2]; /* NOLINT */
    operation *all = calloc((size_t)words[1] + 1, sizeof *all);
    long count = 0;
    if (!all) abort();
    for (long k = 0; k < words[1]; k++) {
        const unsigned op = list[k]->aio_lio_opcode;
        const bool vector = op == IOCB_CMD_PREADV || op == IOCB_CMD_PWRITEV;
        const bool stores = op == IOCB_CMD_PREAD || op == IOCB_CMD_PREADV;
        if (!vector && !stores && op != IOCB_CMD_PWRITE) continue;
        all[count++] = begin((uint64_t *)&list[k]->aio_buf, list[k]->aio_nbytes, vector, stores, pc);
    }
    const long done = raw(SYS_io_submit, words);
    for (long k = 0; k < count; k++) end(&all[k], pc);
    free(all);
    return done;
}

/* --- io_uring -------------------------------------------------------------------------------------------------------- */

#if __has_include(<linux/io_uring.h>)
#include <linux/io_uring.h>

/* The flags have these names in newer headers than those of every system that this is built on. */
enum { SETUP_WIDE = 1 << 10, SETUP_NO_ARRAY = 1 << 16, ENTER_REGISTERED = 1 << 4, BUFFER_SELECTED = 1 << 5 };
enum { RINGS = 1024, SQE_BYTES = 64 };
typedef struct {
    const uint32_t *head, *tail, *array;
    uint8_t *entries;
    uint32_t count;
    size_t entry_bytes;
} ring;
static ring *rings[RINGS]; /* by their file */

/* What an entry moves: V a vector, S it stores to memory. */
enum { MOVES = 1, V = 2, S = 4 };
static const uint8_t MOVED[] = {
    [IORING_OP_READV] = MOVES | V | S, [IORING_OP_WRITEV] = MOVES | V, [IORING_OP_READ_FIXED] = MOVES | S,
    [IORING_OP_WRITE_FIXED] = MOVES,   [IORING_OP_READ] = MOVES | S,   [IORING_OP_WRITE] = MOVES,
    [IORING_OP_SEND] = MOVES,          [IORING_OP_RECV] = MOVES | S,
};

static void *mapped(long file, size_t nbytes, int prot, off_t at) {
    const long found = syscall(SYS_mmap, NULL, nbytes, prot, MAP_SHARED | MAP_POPULATE, file, at);
    return found == -1 ? NULL : (void *)found;
}

/* Without a thread of the kernel's, which would take entries that nobody has seen. Programs of liburing then submit by themselves. */
static long set_up(const long *words) {
    struct io_uring_params *p = (void *)words[1]; /* NOLINT */
    if (p) p->flags &= ~(IORING_SETUP_SQPOLL | IORING_SETUP_SQ_AFF);
    const long file = raw(SYS_io_uring_setup, words);
    if (file < 0 || file >= RINGS) return file;
    const size_t entry_bytes = p->flags & SETUP_WIDE ? 2 * SQE_BYTES : SQE_BYTES;
    const uint8_t *at = mapped(file, p->sq_off.array + p->sq_entries * sizeof(uint32_t), PROT_READ, IORING_OFF_SQ_RING);
    uint8_t *entries = mapped(file, p->sq_entries * entry_bytes, PROT_READ | PROT_WRITE, (off_t)IORING_OFF_SQES);
    ring *r = malloc(sizeof *r);
    if (!r) abort();
    *r = (ring){.entries = entries, .count = p->sq_entries, .entry_bytes = entry_bytes};
    if (at) r->head = (const uint32_t *)(at + p->sq_off.head), r->tail = (const uint32_t *)(at + p->sq_off.tail);
    if (at && !(p->flags & SETUP_NO_ARRAY)) r->array = (const uint32_t *)(at + p->sq_off.array);
    rings[file] = at && entries ? r : NULL; /* that of a file that is closed stays mapped */
    return file;
}

static long enter(const long *words, const void *pc) {
    const bool known = words[0] >= 0 && words[0] < RINGS && !(words[3] & ENTER_REGISTERED);
    const ring *r = known ? rings[words[0]] : NULL;
    if (!r || !mapping_count) return raw(SYS_io_uring_enter, words);
    const uint32_t head = __atomic_load_n(r->head, __ATOMIC_ACQUIRE), given = *r->tail - head;
    const uint32_t most = given < (uint64_t)words[1] ? given : (uint32_t)words[1];
    operation *all = calloc(most + 1, sizeof *all);
    uint32_t count = 0;
    if (!all) abort();
    for (uint32_t k = head; k != head + most; k++) {
        const uint32_t at = r->array ? r->array[k & (r->count - 1)] : k;
        struct io_uring_sqe *its = (void *)(r->entries + (at & (r->count - 1)) * r->entry_bytes);
        const uint8_t moved = its->opcode < sizeof MOVED ? MOVED[its->opcode] : 0;
        if (!moved || its->flags & BUFFER_SELECTED) continue;
        all[count++] = begin((uint64_t *)&its->addr, its->len, moved & V, moved & S, pc);
    }
    const long done = raw(SYS_io_uring_enter, words);
    for (uint32_t k = 0; k < count; k++) end(&all[k], pc);
    free(all);
    return done;
}

static long registered(const long *words, const void *pc) {
    uint64_t list = (uint64_t)words[2];
    const bool buffers = words[1] == IORING_REGISTER_BUFFERS && mapping_count;
    operation all = buffers ? begin(&list, (size_t)words[3], true, true, pc) : (operation){0};
    const long its[] = {words[0], words[1], (long)list, words[3], words[4], words[5]};
    const long done = raw(SYS_io_uring_register, its);
    free(all.reached);
    return done;
}

#else
static long set_up(const long *words) { return raw(SYS_io_uring_setup, words); }
static long enter(const long *words, const void *pc) { return (void)pc, raw(SYS_io_uring_enter, words); }
static long registered(const long *words, const void *pc) { return (void)pc, raw(SYS_io_uring_register, words); }
#endif

long system_call(long number, const long *words, const void *pc) {
    switch (self && self->inside ? 0 : number) {
    case SYS_io_submit: return mapping_count ? submit(words, pc) : raw(number, words);
    case SYS_io_uring_setup: return set_up(words);
    case SYS_io_uring_enter: return enter(words, pc);
    case SYS_io_uring_register: return registered(words, pc);
    default: return raw(number, words);
    }
}

__attribute__((used, visibility("hidden"))) long cxlemu_asynchronous(long number, long a, long b, long c, long d,
                                                                     long e, long f) {
    const long words[] = {a, b, c, d, e, f}, done = system_call(number, words, HERE);
    return done < 0 ? cxlemu_system_call_failed(done) : done;
}

#endif
