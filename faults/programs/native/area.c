#define _GNU_SOURCE
#include "area.h"

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

static void *map_file(const char *path, size_t nbytes) {
    const int file = real_open()(path, O_RDWR | O_CLOEXEC);
    if (file < 0) return NULL;
    void *at = real_mmap()(area_far_from_code(nbytes), nbytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file,
                           0);
    close(file);
    return at == MAP_FAILED ? NULL : at;
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

/* Do something with each file that is mapped, the area last; returns whether all of it was done. */
static bool with_files(bool (*with)(void *at, size_t nbytes)) {
    const program_options *options = &here.area->options;
    bool ok = true;
#define WITH(at, nbytes) (ok = (!(at) || with((at), (size_t)(nbytes))) && ok)
    for (int pool = 0; pool < options->pools; pool++) {
        const int64_t capacity = options->capacity[pool], lines = capacity / LINE_BYTES;
        for (int host = 0; host < options->hosts; host++) {
            const host_image *image = image_of(host, pool);
            if (host == 0) WITH(image->cache.pool, capacity);
            WITH(image->cache.data, capacity), WITH(image->cache.posted, capacity), WITH(image->twin, capacity);
            WITH(image->cache.state, lines), WITH(image->cache.pending, lines);
        }
        WITH(program_watcher_lines[pool], lines * WATCHER_LINE_BYTES);
    }
    WITH(program_watcher_room, WATCHER_ROOM_BYTES);
    WITH(record_now, sizeof *record_now), WITH(crash_now, sizeof *crash_now);
    WITH(here.area, sizeof *here.area);
#undef WITH
    return ok;
}

static bool unmap(void *at, size_t nbytes) { return munmap(at, nbytes) == 0; }
static bool empty(void *at, size_t nbytes) { return madvise(at, nbytes, MADV_REMOVE) == 0; }

bool area_empty(void) { return here.area && with_files(empty); }

void area_detach(void) {
    if (!here.area) return;
    with_files(unmap);
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
