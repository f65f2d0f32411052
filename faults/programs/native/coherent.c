/* Ranges of pools in which caches are coherent between hosts and locked instructions reach across them, as CXL 3 has them by
 * back-invalidation. Every host's image of such a range is the pool's own memory, so hardware keeps it coherent. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "real.h"
#include "self.h"

#define LOCK_S 60.0

int coherent_range(int pool, int64_t offset) {
    const program_options *o = &here.area->options;
    for (int k = 0; k < PROGRAM_COHERENT && o->coherent[k].end; k++)
        if (o->coherent[k].pool == pool && offset >= o->coherent[k].begin && offset < o->coherent[k].end) return k;
    return -1;
}

bool program_coherent_anywhere;
bool program_coherent(int pool, int64_t line) { return is_coherent(pool, line); }

void coherent_loads(const program_step *load, const uint8_t *twin) {
    program_area *a = here.area;
    const int64_t last = (load->offset + load->nbytes - 1) / PROGRAM_LINE;
    if (!a->options.free_running || !is_coherent(load->pool, load->offset / PROGRAM_LINE) ||
        !is_coherent(load->pool, last))
        return;
    open_load *its = &a->loads[load->thread];
    its->step = *load, its->step.locked = false; /* its fence is behind it */
    its->step.what = load->kind == STEP_LOAD ? LOAD_PERHAPS : 0;
    memcpy(its->bytes, twin + load->offset,
           (size_t)load->nbytes < sizeof its->bytes ? (size_t)load->nbytes : sizeof its->bytes);
}

void coherent_loaded(int thread, const void *value, size_t nbytes) {
    open_load *its = &here.area->loads[thread];
    if (its->step.nbytes == (int64_t)nbytes && memcmp(its->bytes, value, nbytes) == 0) its->step.nbytes = 0;
    its->step.what = 0;
}

static bool overlap(const open_store *open, const pool_range *range) {
    return open->nbytes && open->pool == range->pool && open->offset < range->offset + range->nbytes &&
           range->offset < open->offset + open->nbytes;
}

void coherent_stores(int thread, const pool_range *range) {
    const bool shared = here.area->options.free_running && is_coherent(range->pool, range->offset / PROGRAM_LINE);
    for (int k = 0; shared && k < here.area->thread_count; k++)
        if (k != thread && overlap(&here.area->opens[k], range)) store_told_early(k, true);
}

void coherent_stored(int thread, const pool_range *range) {
    const bool shared = here.area->options.free_running && is_coherent(range->pool, range->offset / PROGRAM_LINE);
    for (int k = 0; shared && k < here.area->thread_count; k++)
        if (k != thread && overlap(&here.area->opens[k], range)) here.area->opens[k].beside = true;
}

static void hears(program_step *load) {
    load->number = here.area->steps;
    if (program_watcher_now && program_watcher_now->load)
        program_watcher_now->load(load, image_of(here.host, load->pool)->cache.data + load->offset);
}

static void hears_all(program_step *load) {
    const pool_range range = {load->pool, load->offset, load->nbytes};
    hears(load);
    for (int other = 0; other < here.area->thread_count; other++) {
        if (other == load->thread || !overlap(&here.area->opens[other], &range)) continue;
        store_told_early(other, load->kind == STEP_RMW);
        hears(load);
    }
}

void coherent_rested(int thread) {
    program_step *its = &here.area->loads[thread].step;
    const uint8_t what = its->what;
    if (!its->nbytes || !host_lock_take(&here.area->lock, LOCK_S)) return;
    its->what = 0, hears_all(its), its->what = what;
    host_lock_release(&here.area->lock);
}

void coherent_hears(int thread, uint64_t at) {
    program_area *a = here.area;
    for (int k = 0; k < a->thread_count; k++) {
        program_step *its = &a->loads[k].step;
        const pool_range range = {its->pool, its->offset, its->nbytes};
        if (!its->nbytes || its->host != here.host) continue;
        if (k == thread && at == step_place(STEP_LOAD, &range))
            continue; /* it looks again, as it has seen nothing new */
        hears_all(its);
        if (k == thread) its->nbytes = 0;
    }
}

REAL(int, open, const char *, int, ...)
REAL(void *, mmap, void *, size_t, int, int, int, off_t)

bool coherent_map(int pool, const char *path, uint8_t *at, int64_t offset, int64_t nbytes, int prot) {
    const program_options *o = &here.area->options;
    bool ok = true;
    for (int k = 0; ok && k < PROGRAM_COHERENT && o->coherent[k].end; k++) {
        const int64_t from = o->coherent[k].begin > offset ? o->coherent[k].begin : offset;
        const int64_t to = o->coherent[k].end < offset + nbytes ? o->coherent[k].end : offset + nbytes;
        if (o->coherent[k].pool != pool || from >= to) continue;
        const int file = real_open()(path, O_RDWR | O_CLOEXEC);
        ok = file >= 0 && real_mmap()(at + (from - offset), (size_t)(to - from), prot,
                                      MAP_SHARED | MAP_NORESERVE | MAP_FIXED, file, from) != MAP_FAILED;
        if (file >= 0) close(file);
    }
    return ok;
}
