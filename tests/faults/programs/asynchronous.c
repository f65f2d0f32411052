/* A message of eight lines that the kernel reads from a file into the pool, and writes out of it, while the program could go on: WAY says
 * how. `w` publishes it; `r` waits, and writes it to a file. NOT_FLUSHED forgets the flush of its last line, NO_INVALIDATE the reader's
 * invalidate. Exit code 77: this system does not do it. */
#define _GNU_SOURCE
#include <aio.h>
#include <cxl.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define AIO 1
#define LIST 2
#define THREAD 3
#define SIGNAL 4
#define SUBMIT 5
#define SUBMIT_PARTS 6
#define RING 7
#define RING_PARTS 8
#define RING_FIXED 9
#define LIBURING 10
#define LIBAIO 11
enum { SIZE = 512, LINE = 64 };
typedef struct {
    volatile uint64_t ready;
    uint8_t pad[LINE - 8], text[SIZE];
} box;

static long must(long done) {
    if (done < 0) perror("asynchronous"), exit(errno == ENOSYS || errno == EPERM ? 77 : 70);
    return done;
}

#if WAY <= SIGNAL
static volatile sig_atomic_t told;
static void by_thread(union sigval value) { told = value.sival_int; }
static void by_signal(int number, siginfo_t *info, void *context) {
    (void)number, (void)context;
    told = info->si_value.sival_int;
}
static void move(int writes, int file, void *at) {
    struct aiocb one = {.aio_fildes = file, .aio_buf = at, .aio_nbytes = SIZE};
    struct aiocb *list[] = {&one, NULL};
    const struct aiocb *const waits[] = {&one};
    one.aio_sigevent.sigev_notify = WAY == THREAD ? SIGEV_THREAD : WAY == SIGNAL ? SIGEV_SIGNAL : SIGEV_NONE;
    one.aio_sigevent.sigev_value.sival_int = 3;
    if (WAY == THREAD) one.aio_sigevent.sigev_notify_function = by_thread;
    struct sigaction action = {.sa_sigaction = by_signal, .sa_flags = SA_SIGINFO};
    if (WAY == SIGNAL) one.aio_sigevent.sigev_signo = SIGUSR1, sigaction(SIGUSR1, &action, NULL);
    one.aio_lio_opcode = writes ? LIO_WRITE : LIO_READ;
    if (WAY == LIST) must(lio_listio(LIO_WAIT, list, 2, NULL));
    else must(writes ? aio_write(&one) : aio_read(&one));
    while (WAY != AIO && WAY != LIST && told != 3) sched_yield();
    must(aio_suspend(waits, 1, NULL));
    if (aio_error(&one) != 0 || aio_return(&one) != SIZE || one.aio_buf != at) exit(71);
}
#elif WAY <= SUBMIT_PARTS
#include <linux/aio_abi.h>
static void move(int writes, int file, void *at) {
    aio_context_t context = 0;
    struct iovec parts[2] = {{at, LINE}, {(char *)at + LINE, SIZE - LINE}};
    struct iocb one = {.aio_fildes = (uint32_t)file, .aio_buf = (uintptr_t)at, .aio_nbytes = SIZE};
    struct iocb *list[1] = {&one};
    struct io_event event;
    one.aio_lio_opcode = writes ? IOCB_CMD_PWRITE : IOCB_CMD_PREAD;
    if (WAY == SUBMIT_PARTS) {
        one.aio_lio_opcode = writes ? IOCB_CMD_PWRITEV : IOCB_CMD_PREADV;
        one.aio_buf = (uintptr_t)parts, one.aio_nbytes = 2;
    }
    must(syscall(SYS_io_setup, 4, &context));
    must(syscall(SYS_io_submit, context, 1, list));
    must(syscall(SYS_io_getevents, context, 1, 1, &event, NULL));
    if (event.res != SIZE || one.aio_buf != (uintptr_t)(WAY == SUBMIT ? at : (void *)parts)) exit(71);
    syscall(SYS_io_destroy, context);
}
#elif WAY <= RING_FIXED
#include <linux/io_uring.h>
static void *mapped(int ring, size_t nbytes, off_t at) {
    void *found = mmap(NULL, nbytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, ring, at);
    if (found == MAP_FAILED) exit(72);
    return found;
}
static void move(int writes, int file, void *at) {
    static const int read_by[] = {IORING_OP_READ, IORING_OP_READV, IORING_OP_READ_FIXED};
    static const int write_by[] = {IORING_OP_WRITE, IORING_OP_WRITEV, IORING_OP_WRITE_FIXED};
    struct iovec parts[2] = {{at, LINE}, {(char *)at + LINE, SIZE - LINE}}, whole = {at, SIZE};
    struct io_uring_params p = {.flags = WAY == RING_PARTS ? IORING_SETUP_SQPOLL : 0};
    const int ring = (int)must(syscall(SYS_io_uring_setup, 4, &p));
    if (p.flags & IORING_SETUP_SQPOLL) exit(73); /* a thread of the kernel's takes entries unseen */
    char *sq = mapped(ring, p.sq_off.array + p.sq_entries * 4, IORING_OFF_SQ_RING);
    char *cq = mapped(ring, p.cq_off.cqes + p.cq_entries * sizeof(struct io_uring_cqe), IORING_OFF_CQ_RING);
    struct io_uring_sqe *one = mapped(ring, p.sq_entries * sizeof *one, (off_t)IORING_OFF_SQES);
    *one = (struct io_uring_sqe){.opcode = (uint8_t)(writes ? write_by : read_by)[WAY - RING], .fd = file};
    one->addr = (uintptr_t)(WAY == RING_PARTS ? (void *)parts : at), one->len = WAY == RING_PARTS ? 2 : SIZE;
    if (WAY == RING_FIXED) must(syscall(SYS_io_uring_register, ring, IORING_REGISTER_BUFFERS, &whole, 1));
    uint32_t *tail = (uint32_t *)(sq + p.sq_off.tail);
    ((uint32_t *)(sq + p.sq_off.array))[*tail] = 0;
    __atomic_store_n(tail, *tail + 1, __ATOMIC_RELEASE);
    must(syscall(SYS_io_uring_enter, ring, 1, 1, IORING_ENTER_GETEVENTS, NULL, 0));
    const struct io_uring_cqe *done = (struct io_uring_cqe *)(cq + p.cq_off.cqes) + *(uint32_t *)(cq + p.cq_off.head);
    if (done->res != SIZE || one->addr != (uintptr_t)(WAY == RING_PARTS ? (void *)parts : at)) exit(71);
    close(ring);
}
#elif WAY == LIBURING
#include <liburing.h>
static void move(int writes, int file, void *at) {
    struct io_uring ring;
    struct io_uring_cqe *done;
    if ((errno = -io_uring_queue_init(4, &ring, IORING_SETUP_SQPOLL))) must(-1);
    struct io_uring_sqe *one = io_uring_get_sqe(&ring);
    if (writes) io_uring_prep_write(one, file, at, SIZE, 0);
    else io_uring_prep_read(one, file, at, SIZE, 0);
    if (io_uring_submit_and_wait(&ring, 1) != 1 || io_uring_wait_cqe(&ring, &done) || done->res != SIZE) exit(71);
    io_uring_queue_exit(&ring);
}
#else
#include <libaio.h>
static void move(int writes, int file, void *at) {
    io_context_t context = 0;
    struct iocb one, *list[1] = {&one};
    struct io_event event;
    if ((errno = -io_setup(4, &context))) must(-1);
    if (writes) io_prep_pwrite(&one, file, at, SIZE, 0);
    else io_prep_pread(&one, file, at, SIZE, 0);
    if (io_submit(context, 1, list) != 1 || io_getevents(context, 1, 1, &event, NULL) != 1) exit(71);
    if (event.res != SIZE || one.u.c.buf != at) exit(72);
    io_destroy(context);
}
#endif

int main(int count, char **words) {
    uint8_t meant[SIZE], got[SIZE];
    box *b = mmap(NULL, 2 << 20, PROT_READ | PROT_WRITE, MAP_SHARED, open(words[1], O_RDWR), 0);
    const int file = open("/tmp", O_TMPFILE | O_RDWR, 0600);
    if (count != 3 || b == MAP_FAILED || file < 0) return 3;
    for (int k = 0; k < SIZE; k++) meant[k] = (uint8_t)(k * 7 + 1);
    if (words[2][0] == 'w') {
        if (pwrite(file, meant, SIZE, 0) != SIZE) return 4;
        move(0, file, b->text);
#if defined(NOT_FLUSHED)
        cxl_flush(b->text, SIZE - LINE);
#else
        cxl_flush(b->text, SIZE);
#endif
        cxl_fence();
        b->ready = 1;
        cxl_flush((void *)&b->ready, 8), cxl_fence();
        return 0;
    }
    for (;; sched_yield()) {
        cxl_invalidate((void *)&b->ready, 8);
        if (b->ready) break;
    }
#if !defined(NO_INVALIDATE)
    cxl_invalidate(b->text, SIZE);
#endif
    move(1, file, b->text);
    return pread(file, got, SIZE, 0) != SIZE || memcmp(got, meant, SIZE) ? 9 : 0;
}
