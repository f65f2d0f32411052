/* Stores that nobody announced: by a library that was not recompiled, by the kernel for io_uring and the like, by vector
 * instructions of which compilers tell nothing. A line that a step touches is compared with its twin; what differs is a
 * store of this host, which took place before this step, at an unknown place. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "self.h"

/* Report stores of the line that other threads announced, as their bytes are there: such a thread may never come to its next
 * step, as it waits in a system call or for a word of private memory. */
static void tell_announced(int pool, int64_t line) {
    for (int k = 0; k < here.area->thread_count; k++) {
        const open_store *open = &here.area->opens[k];
        if (!open->nbytes || open->pool != pool) continue;
        if (here.area->threads[k].host != here.host && !is_coherent(pool, line)) continue;
        if (open->offset / LINE_BYTES <= line && line <= (open->offset + open->nbytes - 1) / LINE_BYTES) {
            if (here.area->options.free_running) store_told_early(k, false);
            else store_told(k);
        }
    }
}

static void tell_run(const program_self *me, pool_range run) {
    const host_image *image = image_of(here.host, run.pool);
    const program_step step = step_of(me, STEP_STORE, &run, me->system_wrote);
    if (program_watcher_now && program_watcher_now->store)
        program_watcher_now->store(&step, image->twin + run.offset, image->cache.data + run.offset);
}

static void take(program_self *me, int pool, int64_t line) {
    int64_t broken;
    const pool_lines one = {pool, line, line + 1};
    tell_announced(pool, line);
    if (!image_unannounced(here.host, pool, line)) return;
    if (image_touch((mover){here.host, (uint16_t)me->thread, BY_PROGRAM}, one, true, &broken) != DONE) return;
    const uint64_t bytes = image_unannounced(here.host, pool, line);
    for (int from = 0, to; from < LINE_BYTES; from = to) {
        for (to = from + 1; to < LINE_BYTES && (bytes >> to & 1) == (bytes >> from & 1);) to++;
        if (bytes >> from & 1) tell_run(me, (pool_range){pool, line * LINE_BYTES + from, to - from});
    }
    here.area->unannounced += !me->system_wrote;
    turn_written(here.host);
    turn_progress(me->thread, true);
    image_told(here.host, pool, line * LINE_BYTES, LINE_BYTES);
}

void silent_stores(program_self *me, pool_lines lines) {
    const host_image *image = image_of(here.host, lines.pool);
    const int64_t begin = lines.first * LINE_BYTES, nbytes = (lines.last - lines.first) * LINE_BYTES;
    if (nbytes > LINE_BYTES && memcmp(image->cache.data + begin, image->twin + begin, (size_t)nbytes) == 0) return;
    for (int64_t line = lines.first; line < lines.last; line++)
        if (image_unannounced(here.host, lines.pool, line)) take(me, lines.pool, line);
}

/* Look for stores to those lines of a pool whose bytes lie in this file. */
static void silent_stores_in(program_self *me, int pool, const char *path, bool coherent) {
    KEEPS_ERRNO;
    const int file = area_open(path, O_RDONLY);
    for (off_t end = 0, at; file >= 0 && (at = (off_t)syscall(SYS_lseek, file, end, SEEK_DATA)) >= 0;) {
        end = (off_t)syscall(SYS_lseek, file, at, SEEK_HOLE);
        for (int64_t line = at / LINE_BYTES; line < end / LINE_BYTES; line++)
            if (is_coherent(pool, line) == coherent) silent_stores(me, (pool_lines){pool, line, line + 1});
    }
    if (file >= 0) close(file);
}

void silent_stores_everywhere(program_self *me) {
    char path[2 * PROGRAM_PATH];
    for (int pool = 0; pool < here.area->options.pools; pool++) {
        area_path(path, sizeof path, "host-%d-%d.data", here.host, pool);
        silent_stores_in(me, pool, path, false);
        area_path(path, sizeof path, "pool-%d", pool);
        if (here.area->options.coherent[0].end) silent_stores_in(me, pool, path, true);
    }
}
