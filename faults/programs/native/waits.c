/* Waits for files, sockets and signals: a thread looks whether one is ready, and lets others go first as long as none is. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "real.h"
#include "waits.h"

/* Let others go first where nothing is ready; false once the time is over. */
static bool looks_again(uint64_t until, bool forever, const void *pc) {
    self->outside_looks++;
    if (!forever && clock_now() >= until) return false;
    wait_ns(forever ? 0 : 1000000, pc);
    return true;
}

static uint64_t after_ms(int timeout_ms) {
    return clock_now() + (uint64_t)(timeout_ms < 0 ? 0 : timeout_ms) * 1000000u;
}

static uint64_t after(const struct timespec *limit) {
    return clock_now() + (limit ? (uint64_t)limit->tv_sec * 1000000000u + (uint64_t)limit->tv_nsec : 0);
}

REAL(int, poll, struct pollfd *, nfds_t, int)
PROGRAM_EXPORT int poll(struct pollfd *files, nfds_t count, int timeout_ms) {
    int ready;
    if (!scheduled()) return real_poll()(files, count, timeout_ms);
    const uint64_t until = after_ms(timeout_ms);
    do ready = real_poll()(files, count, 0);
    while (ready == 0 && looks_again(until, timeout_ms < 0, HERE));
    return ready;
}

REAL(int, epoll_wait, int, struct epoll_event *, int, int)
PROGRAM_EXPORT int epoll_wait(int set, struct epoll_event *events, int most, int timeout_ms) {
    int ready;
    if (!scheduled()) return real_epoll_wait()(set, events, most, timeout_ms);
    const uint64_t until = after_ms(timeout_ms);
    do ready = real_epoll_wait()(set, events, most, 0);
    while (ready == 0 && looks_again(until, timeout_ms < 0, HERE));
    return ready;
}

REAL(int, ppoll, struct pollfd *, nfds_t, const struct timespec *, const sigset_t *)
PROGRAM_EXPORT int ppoll(struct pollfd *files, nfds_t count, const struct timespec *limit, const sigset_t *mask) {
    int ready;
    if (!scheduled()) return real_ppoll()(files, count, limit, mask);
    const uint64_t until = after(limit);
    do ready = real_ppoll()(files, count, &(struct timespec){0}, mask);
    while (ready == 0 && looks_again(until, !limit, HERE));
    return ready;
}

REAL(int, epoll_pwait, int, struct epoll_event *, int, int, const sigset_t *)
PROGRAM_EXPORT int epoll_pwait(int set, struct epoll_event *events, int most, int timeout_ms, const sigset_t *mask) {
    int ready;
    if (!scheduled()) return real_epoll_pwait()(set, events, most, timeout_ms, mask);
    const uint64_t until = after_ms(timeout_ms);
    do ready = real_epoll_pwait()(set, events, most, 0, mask);
    while (ready == 0 && looks_again(until, timeout_ms < 0, HERE));
    return ready;
}

REAL(int, sigtimedwait, const sigset_t *, siginfo_t *, const struct timespec *)
static int signal_awaited(const sigset_t *set, siginfo_t *info, const struct timespec *limit, const void *pc) {
    int number;
    if (!scheduled()) return real_sigtimedwait()(set, info, limit);
    const int saved = errno;
    const uint64_t until = after(limit);
    do number = real_sigtimedwait()(set, info, &(struct timespec){0});
    while (number < 0 && errno == EAGAIN && looks_again(until, !limit, pc));
    if (number >= 0) errno = saved;
    return number;
}
PROGRAM_EXPORT int sigtimedwait(const sigset_t *restrict set, siginfo_t *restrict info,
                                const struct timespec *restrict limit) {
    return signal_awaited(set, info, limit, HERE);
}
REAL(int, sigwaitinfo, const sigset_t *, siginfo_t *)
PROGRAM_EXPORT int sigwaitinfo(const sigset_t *restrict set, siginfo_t *restrict info) {
    return scheduled() ? signal_awaited(set, info, NULL, HERE) : real_sigwaitinfo()(set, info);
}
REAL(int, sigwait, const sigset_t *, int *)
PROGRAM_EXPORT int sigwait(const sigset_t *restrict set, int *restrict number) {
    if (!scheduled()) return real_sigwait()(set, number);
    *number = signal_awaited(set, NULL, NULL, HERE);
    return *number < 0 ? errno : 0;
}

REAL(int, select, int, fd_set *, fd_set *, fd_set *, struct timeval *)
PROGRAM_EXPORT int select(int count, fd_set *restrict read, fd_set *restrict write, fd_set *restrict other,
                          struct timeval *restrict timeout) {
    fd_set *sets[] = {read, write, other}, asked[3];
    int ready;
    if (!scheduled() || count > FD_SETSIZE) return real_select()(count, read, write, other, timeout);
    const uint64_t us = timeout ? (uint64_t)timeout->tv_sec * 1000000u + (uint64_t)timeout->tv_usec : 0;
    const uint64_t until = clock_now() + us * 1000;
    for (int k = 0; k < 3; k++)
        if (sets[k]) asked[k] = *sets[k];
    do {
        for (int k = 0; k < 3; k++)
            if (sets[k]) *sets[k] = asked[k];
        ready = real_select()(count, read, write, other, &(struct timeval){0});
    } while (ready == 0 && looks_again(until, !timeout, HERE));
    return ready;
}

void prog_wait_readable(int file, const void *pc) {
    KEEPS_ERRNO;
    struct stat its;
    struct pollfd one = {.fd = file, .events = POLLIN};
    if (!scheduled() || syscall(SYS_fstat, file, &its) != 0 || S_ISREG(its.st_mode) || S_ISDIR(its.st_mode)) return;
    self->outside_looks++;
    if (fcntl(file, F_GETFL) & O_NONBLOCK) return;
    struct timeval most = {0}; /* how long a socket waits, in the system's time */
    if (getsockopt(file, SOL_SOCKET, SO_RCVTIMEO, &most, &(socklen_t){sizeof most}) == 0 &&
        (most.tv_sec || most.tv_usec))
        return;
    for (; real_poll()(&one, 1, 0) == 0; wait_on(pc)) self->outside_looks++;
}

REAL(int, accept4, int, struct sockaddr *, socklen_t *, int)
PROGRAM_EXPORT int accept4(int file, struct sockaddr *address, socklen_t *length, int flags) {
    if (self) prog_wait_readable(file, HERE);
    return real_accept4()(file, address, length, flags);
}
REAL(int, accept, int, struct sockaddr *, socklen_t *)
PROGRAM_EXPORT int accept(int file, struct sockaddr *address, socklen_t *length) {
    if (self) prog_wait_readable(file, HERE);
    return real_accept()(file, address, length);
}
