/* /dev/shm is full: a page of the run's files cannot be had, which is SIGBUS. That is nobody's mistake: the process that meets it says so
 * in the area and ends, and the driver goes on with a page of its own until it has removed the run. */
#define _GNU_SOURCE
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "self.h"

enum { PAGE = 4096 };
static bool full; /* in the driver, whose area may have no page */
static struct sigaction before;

static bool within(const void *at, const void *from, int64_t nbytes) {
    return from && (uintptr_t)at - (uintptr_t)from < (uintptr_t)nbytes;
}

static bool is_of_run(const void *at) {
    const program_area *a = here.area;
    if (!a) return false;
    if (within(at, a, sizeof *a) || within(at, program_watcher_room, WATCHER_ROOM_BYTES)) return true;
    for (int pool = 0; pool < a->options.pools; pool++) {
        const int64_t capacity = a->options.capacity[pool], lines = capacity / LINE_BYTES;
        if (within(at, program_watcher_lines[pool], lines * WATCHER_LINE_BYTES)) return true;
        for (int host = 0; host < a->options.hosts; host++) {
            const host_image *image = image_of(host, pool);
            const card_cache *c = &image->cache;
            if (within(at, c->pool, capacity) || within(at, c->data, capacity) || within(at, c->posted, capacity) ||
                within(at, image->twin, capacity) || within(at, c->state, lines) || within(at, c->pending, lines))
                return true;
        }
    }
    return prog_in_pool(at, 1);
}

static void on_bus_error(int number, siginfo_t *info, void *context) {
    (void)context;
    if (info->si_code == BUS_ADRERR && is_of_run(info->si_addr)) {
        uint8_t *page = (uint8_t *)((uintptr_t)info->si_addr / PAGE * PAGE);
        full = true;
        if (here.host != DRIVER) here.area->no_room = true, process_die();
        if (mmap(page, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == page) return;
    }
    const struct sigaction standard = {.sa_handler = SIG_DFL};
    sigaction(number, &standard, NULL);
    syscall(SYS_tgkill, getpid(), (pid_t)syscall(SYS_gettid), number); /* arrives when the handler has ended */
}

void room_watch(void) {
    struct sigaction action = {.sa_flags = SA_SIGINFO};
    full = false;
    sigaction(SIGBUS, NULL, &before);
    if (here.host != DRIVER && (before.sa_flags & SA_SIGINFO || before.sa_handler != SIG_DFL)) return;
    action.sa_sigaction = on_bus_error;
    sigaction(SIGBUS, &action, NULL);
}

void room_unwatch(void) { sigaction(SIGBUS, &before, NULL); }

bool room_is_full(void) { return full || here.area->no_room; }
