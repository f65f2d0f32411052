#define _GNU_SOURCE
#include "area.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "crash.h"
#include "real.h"
#include "record.h"

program_process here;
const program_watcher *program_watcher_now;
const program_pages *program_pages_now;
uint8_t *program_watcher_lines[PROGRAM_POOLS], *program_watcher_room;

void area_path(char *path, size_t size, const char *format, ...) {
    va_list rest;
    const int begun = snprintf(path, size, "%s/", here.folder);
    va_start(rest, format);
    vsnprintf(path + begun, size - (size_t)begun, format, rest);
    va_end(rest);
}

void *area_far_from_code(size_t nbytes) {
#if defined(__x86_64__)
    enum { APART = 2 << 20 };
    static _Atomic uintptr_t next = 0x7E9000000000u;
    return (void *)atomic_fetch_add(&next, (nbytes / APART + 2) * APART);
#else
    (void)nbytes;
    return NULL;
#endif
}

REAL(int, open, const char *, int, ...)
REAL(void *, mmap, void *, size_t, int, int, int, off_t)

int area_open(const char *path, int flags) { return real_open()(path, flags | O_CLOEXEC, 0600); }

/* The files that are mapped; the driver keeps the first ones open. */
static struct mapped_file {
    void *at;
    size_t nbytes;
    int file;
} mapped[3 + PROGRAM_POOLS * (2 + 5 * PROGRAM_HOSTS)];
static int mapped_count;

static void *map_file(const char *path, size_t nbytes) {
    enum { OPEN_MOST = 64 };
    const int file = area_open(path, O_RDWR);
    if (file < 0) return NULL;
    void *at = real_mmap()(area_far_from_code(nbytes), nbytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file,
                           0);
    const bool kept = at != MAP_FAILED && here.host == DRIVER && mapped_count < OPEN_MOST;
    if (!kept) close(file);
    if (at == MAP_FAILED) return NULL;
    mapped[mapped_count++] = (struct mapped_file){at, nbytes, kept ? file : -1};
    return at;
}

static bool attach_image(int host, int pool, uint8_t *bytes, uint8_t **parts[5]) {
    static const char *const names[] = {"data", "posted", "twin", "state", "pending"};
    const int64_t capacity = here.area->options.capacity[pool];
    char path[2 * PROGRAM_PATH];
    for (int k = 0; k < 5; k++) {
        area_path(path, sizeof path, "host-%d-%d.%s", host, pool, names[k]);
        if (!(*parts[k] = map_file(path, (size_t)(k < 3 ? capacity : capacity / LINE_BYTES)))) return false;
    }
    area_path(path, sizeof path, "pool-%d", pool);
    if (!coherent_map(pool, path, *parts[0], 0, capacity, PROT_READ | PROT_WRITE)) return false;
    area_path(path, sizeof path, "host-0-%d.twin", pool);
    if (!coherent_map(pool, path, *parts[2], 0, capacity, PROT_READ | PROT_WRITE)) return false;
    host_image *image = image_of(host, pool);
    image->lines = capacity / LINE_BYTES;
    image->cache.pool = bytes, image->cache.damage = here.area->damage;
    image->cache.host = host, image->cache.card = pool;
    return true;
}

static bool attach_pool(int pool) {
    char path[2 * PROGRAM_PATH];
    const int64_t capacity = here.area->options.capacity[pool];
    area_path(path, sizeof path, "pool-%d", pool);
    uint8_t *bytes = map_file(path, (size_t)capacity);
    area_path(path, sizeof path, "lines-%d", pool);
    program_watcher_lines[pool] = map_file(path, (size_t)(capacity / LINE_BYTES * WATCHER_LINE_BYTES));
    if (!bytes || !program_watcher_lines[pool]) return false;
    for (int host = 0; host < here.area->options.hosts; host++) {
        host_image *image = image_of(host, pool);
        uint8_t **parts[] = {&image->cache.data, &image->cache.posted, &image->twin, &image->cache.state,
                             &image->cache.pending};
        if (!attach_image(host, pool, bytes, parts)) return false;
    }
    return true;
}

static bool attach_record(void) {
    char path[2 * PROGRAM_PATH];
    area_path(path, sizeof path, "record");
    record_now = map_file(path, sizeof(run_record));
    return record_now != NULL;
}

static bool attach_crashes(void) {
    char path[2 * PROGRAM_PATH];
    area_path(path, sizeof path, "crashes");
    crash_now = map_file(path, sizeof(crash_area));
    return crash_now != NULL;
}

bool area_attach(const char *folder, int host) {
    char path[2 * PROGRAM_PATH];
    if (strlen(folder) >= sizeof here.folder) return false;
    strcpy(here.folder, folder), here.host = host;
    area_path(path, sizeof path, "area");
    program_area *area = map_file(path, sizeof(program_area));
    if (!area) return false;
    here.area = area, program_coherent_anywhere = area->options.coherent[0].end != 0;
    bool ok = area->size == sizeof *area;
    area_path(path, sizeof path, "room");
    ok = ok && (program_watcher_room = map_file(path, (size_t)WATCHER_ROOM_BYTES));
    for (int pool = 0; ok && pool < area->options.pools; pool++) ok = attach_pool(pool);
    if (ok && area->options.every) ok = attach_record();
    if (ok && area->options.crashes) ok = attach_crashes();
    if (!ok) here.area = NULL;
    return ok;
}

/* Overwrite what little there is in a file, as pages that stay cost the next run no new ones; give back more. */
static bool empty(const struct mapped_file *its) {
    enum { LITTLE = 1 << 18 };
    off_t all = 0, to = 0;
    while (its->file >= 0) {
        const off_t from = lseek(its->file, to, SEEK_DATA);
        if (from < 0) return errno == ENXIO;
        to = lseek(its->file, from, SEEK_HOLE);
        if ((all += to - from) > LITTLE) break;
        memset((uint8_t *)its->at + from, 0, (size_t)(to - from));
    }
    return madvise(its->at, its->nbytes, MADV_REMOVE) == 0;
}

bool area_empty(void) {
    bool ok = here.area;
    for (int k = 0; k < mapped_count; k++) ok = ok && empty(&mapped[k]);
    return ok;
}

void area_detach(void) {
    for (; mapped_count; mapped_count--) {
        munmap(mapped[mapped_count - 1].at, mapped[mapped_count - 1].nbytes);
        if (mapped[mapped_count - 1].file >= 0) close(mapped[mapped_count - 1].file);
    }
    if (!here.area) return;
    memset(&here, 0, sizeof here);
    memset(program_watcher_lines, 0, sizeof program_watcher_lines);
    program_watcher_room = NULL, record_now = NULL, crash_now = NULL;
}

void program_watched(uint64_t lines, uint64_t bytes) {
    here.area->watched_lines = lines, here.area->watched_bytes = bytes;
}

bool program_failed(void) { return here.area->outcome == COMMAND_FAILED; }

uint64_t program_step_number(void) { return here.area ? here.area->steps : 0; }

program_line_view program_look(int host, int pool, int64_t line) {
    const card_cache *c = &image_of(host, pool)->cache;
    const uint8_t state = c->state[line];
    return (program_line_view){
        .present = state & 1,
        .dirty = (state & 2) != 0,
        .pending = c->pending[line] != 0,
        .cached = c->data + line * LINE_BYTES,
        .posted = c->posted + line * LINE_BYTES,
        .pool = c->pool + line * LINE_BYTES,
    };
}
