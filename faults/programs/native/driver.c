/* The functions that `cxlemu exec` itself calls through ctypes, from faults/programs/area.py. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "crash.h"
#include "record.h"
#include "self.h"

static bool make_file(const char *name, int64_t nbytes) {
    char path[2 * PROGRAM_PATH];
    area_path(path, sizeof path, "%s", name);
    const int file = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    const bool ok = file >= 0 && ftruncate(file, nbytes) == 0;
    if (file >= 0) close(file);
    return ok;
}

static bool make_pool(const program_options *o, int pool) {
    static const char *const parts[] = {"data", "posted", "twin", "state", "pending"};
    char name[64];
    const int64_t capacity = o->capacity[pool], lines = capacity / LINE_BYTES;
    bool ok = snprintf(name, sizeof name, "pool-%d", pool) > 0 && make_file(name, capacity);
    ok = ok && snprintf(name, sizeof name, "lines-%d", pool) > 0 && make_file(name, lines * WATCHER_LINE_BYTES);
    for (int host = 0; host < o->hosts; host++)
        for (int k = 0; ok && k < 5; k++) {
            snprintf(name, sizeof name, "host-%d-%d.%s", host, pool, parts[k]);
            ok = make_file(name, k < 3 ? capacity : lines);
        }
    return ok;
}

/* Return the sizes of structs, for a comparison with Python's. */
PROGRAM_EXPORT size_t program_options_bytes(void) { return sizeof(program_options); }
PROGRAM_EXPORT size_t program_findings_bytes(void) { return sizeof(program_finding); }
PROGRAM_EXPORT size_t program_crashes_bytes(void) { return offsetof(crash_area, lines); }
PROGRAM_EXPORT size_t program_operations_bytes(void) { return sizeof(program_operation); }
PROGRAM_EXPORT size_t program_threads_bytes(void) { return sizeof(program_thread); }

static bool make_files(const program_options *options) {
    bool ok = make_file("area", sizeof(program_area)) && make_file("room", WATCHER_ROOM_BYTES);
    for (int pool = 0; ok && pool < options->pools; pool++) ok = make_pool(options, pool);
    if (ok && options->every) ok = make_file("record", sizeof(run_record));
    if (ok && options->crashes) ok = make_file("crashes", sizeof(crash_area));
    char path[2 * PROGRAM_PATH];
    area_path(path, sizeof path, "area");
    const int file = ok ? open(path, O_RDWR | O_CLOEXEC) : -1;
    const uint64_t size = sizeof(program_area);
    if (file < 0) return false;
    ok = pwrite(file, &size, sizeof size, offsetof(program_area, size)) == sizeof size &&
         pwrite(file, options, sizeof *options, offsetof(program_area, options)) == sizeof *options;
    close(file);
    return ok;
}

/* Begin a run in a folder, to whose files the driver is attached: they are empty, also where another run has used them. */
PROGRAM_EXPORT bool program_make(const char *folder, const program_options *options) {
    if (strlen(folder) >= sizeof here.folder) return false;
    if (strcmp(here.folder, folder) != 0 || !area_empty()) area_detach();
    strcpy(here.folder, folder);
    if (!here.area && !(make_files(options) && area_attach(folder, DRIVER))) return false;
    room_watch();
    here.area->size = sizeof *here.area, here.area->options = *options;
    here.area->driver = getpid();
    watcher_choose();
    turn_begin(here.area);
    if (crash_now) crash_make();
    return host_lock_make(&here.area->lock) && host_lock_make(&here.area->turns);
}

PROGRAM_EXPORT void program_end(void) { room_unwatch(); }

/* Let go of a folder's files. */
PROGRAM_EXPORT void program_leave(const char *folder) {
    if (strcmp(here.folder, folder) == 0) area_detach();
}

PROGRAM_EXPORT bool program_full(void) { return room_is_full(); }

/* Start a command. Return the number of its first process's thread. */
PROGRAM_EXPORT int program_expect(int host, int command, int stage) {
    here.area->stage = stage;
    return turn_new_thread(host, command, 0);
}

/* End a process: no thread waits for its threads any more, and the accesses that they announced have happened. */
PROGRAM_EXPORT void program_gone(int pid) {
    program_area *a = here.area;
    int process = 0;
    for (int k = 0; k < a->thread_count; k++) {
        if (a->threads[k].pid != pid || turn_state(k) == THREAD_ENDED) continue;
        store_told(k);
        process = a->threads[k].process;
        program_step step = {
            .number = a->steps,
            .kind = STEP_PROCESS_END,
            /* It was killed, perhaps between a store and its flush. */
            .what = a->outcome == GIVEN_UP    ? END_GIVEN_UP
                    : damage_armed(a->damage) ? END_DAMAGED
                                              : 0,
            .host = a->threads[k].host,
            .pool = UINT8_MAX,
            .thread = (uint16_t)k,
            .other = UINT16_MAX,
            .process = (uint16_t)process,
            .stage = (uint16_t)a->stage,
        };
        if (program_watcher_now && program_watcher_now->other) program_watcher_now->other(&step);
        turn_without(k, THREAD_ENDED);
    }
}

/* End a command's thread that no process has taken, and that none can take any more. */
PROGRAM_EXPORT void program_not_taken(int thread) {
    int32_t nobody = 0;
    if (__atomic_compare_exchange_n(&here.area->threads[thread].pid, &nobody, -1, false, __ATOMIC_SEQ_CST,
                                    __ATOMIC_SEQ_CST))
        turn_without(thread, THREAD_ENDED);
}

/* Let no thread wait for this one, if it is still in the state `seen`. Return whether it was. */
PROGRAM_EXPORT bool program_outside(int thread, uint32_t seen) {
    if (!__atomic_compare_exchange_n(&here.area->threads[thread].state, &seen, THREAD_OUTSIDE, false, __ATOMIC_SEQ_CST,
                                     __ATOMIC_SEQ_CST))
        return false;
    turn_without(thread, THREAD_OUTSIDE);
    return true;
}

PROGRAM_EXPORT void program_stop(bool given_up) { turn_stop(given_up ? GIVEN_UP : GOING_ON, -1); }

/* Judge the run after all processes have ended: the lines that are left in caches are final. */
PROGRAM_EXPORT void program_judge(void) {
    if (program_watcher_now && program_watcher_now->end) program_watcher_now->end();
}

enum { BREAKABLE = 3 };

typedef struct {
    uint64_t steps, hash, idle, unannounced, expected, watched_lines, watched_bytes;
    int32_t outcome, threads, turns, findings, sites, modules;
    int32_t met[BREAKABLE]; /* of a link, a card and a line: whether an access met what was broken */
    uint64_t coherent_met; /* coherent ranges that an access touched, as bits */
    uint64_t absent;
    int32_t touched; /* pools that a program touched or, where its loads are not seen, mapped, as bits */
    uint32_t kinds_asked, operations, invariants; /* what programs say that must hold */
    uint32_t unexamined; /* how often what a pool held was not examined */
    uint32_t device_copies; /* to a pool */
    uint32_t flushed; /* whether a program has flushed a line, or stored past its cache */
    uint32_t past_left_out, past_early; /* as in area.h */
} run_status;

PROGRAM_EXPORT void program_status(run_status *status) {
    const program_area *a = here.area;
    const uint64_t *met = a->damage + DAMAGE_BYTES / 16 + 1;
    int32_t touched = a->pages_hosts ? (int32_t)a->mapped : 0;
    for (int pool = 0; pool < a->options.pools; pool++) touched |= (a->extent[pool] != 0) << pool;
    *status = (run_status){
        .steps = a->steps,
        .hash = a->hash,
        .idle = a->idle,
        .unannounced = a->unannounced,
        .expected = a->expected,
        .watched_lines = a->watched_lines,
        .watched_bytes = a->watched_bytes,
        .outcome = a->outcome,
        .threads = a->thread_count,
        .turns = a->turn_count,
        .findings = (int32_t)a->finding_count,
        .sites = (int32_t)a->site_count,
        .modules = (int32_t)a->module_count,
        .met = {met[0] != 0, met[1] != 0, met[2] != 0},
        .coherent_met = a->coherent_met,
        .absent = a->absent,
        .touched = touched,
        .kinds_asked = a->kinds_asked,
        .operations = a->operation_count,
        .invariants = a->invariant_count,
        .unexamined = a->held_count + a->unheld,
        .device_copies = a->device_copies,
        .flushed = a->flushed,
        .past_left_out = a->past_left_out,
        .past_early = a->past_early,
    };
}

PROGRAM_EXPORT const program_thread *program_threads(void) { return here.area->threads; }
PROGRAM_EXPORT const thread_doing *program_doing(void) { return here.area->doing; }
PROGRAM_EXPORT const program_finding *program_findings(void) { return here.area->findings; }
PROGRAM_EXPORT const program_operation *program_operations(void) { return here.area->operations; }
PROGRAM_EXPORT const program_invariant *program_invariants(void) { return here.area->invariants; }
PROGRAM_EXPORT const program_place *program_places(void) { return here.area->sites; }
PROGRAM_EXPORT const program_module *program_modules(void) { return here.area->modules; }
PROGRAM_EXPORT const program_turn *program_turns(void) { return here.area->taken; }
PROGRAM_EXPORT program_turn *program_script(void) { return here.area->script; }
PROGRAM_EXPORT const run_record *program_record(void) { return record_now; }
PROGRAM_EXPORT crash_area *program_crashes(void) { return crash_now; }
PROGRAM_EXPORT uint8_t *program_pool(int pool) { return image_of(0, pool)->cache.pool; }

/* The first bytes of a pool were put there before the run: they are no stores of it. */
PROGRAM_EXPORT void program_filled(int pool, int64_t nbytes) {
    for (int64_t at = 0; at < nbytes; at += LINE_BYTES)
        if (is_coherent(pool, at / LINE_BYTES)) image_told(0, pool, at, LINE_BYTES);
}
