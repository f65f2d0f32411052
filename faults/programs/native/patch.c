#define _GNU_SOURCE
#include "patch.h"

#if defined(__x86_64__)

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { TRAP = 0xCC };
enum { SLOT_BYTES = 64, STOPPING_AT = 32, JUMP_BYTES = 14 }; /* a slot has two copies: one that jumps, one that stops */
enum { MAX_SITES = 1 << 16, MAX_MODULES = 1024, TABLE = 4 * MAX_SITES }; /* two entries per site */
#define TOO_MANY_MODULES "it has more than 1,024 modules"
enum { NEAR_STEPS = 4096, NEAR_STEP_BYTES = 256 << 10 };

_Static_assert(X86_LONGEST + JUMP_BYTES <= STOPPING_AT, "a copy does not fit");

/* Modules that are not patched: the C library and its like use locks for themselves, and never access a pool. */
static const char *const LEFT_ALONE[] = {"ld-linux", "libc.so", "libc-",       "libm.so",   "libm-",      "libpthread",
                                         "libdl",    "librt",   "libgcc_s.so", "libstdc++", "linux-vdso", "libffi.so"};

/* Threads look traps up while entries are added, so a pointer is stored after the entry that it points to is
 * complete. */
typedef struct {
    const uint8_t *after;
    const patch_site *site;
} entry;
static _Atomic(entry *) table[TABLE];
static size_t entries_used;

static atomic_flag patching = ATOMIC_FLAG_INIT;
typedef struct {
    const ElfW(Phdr) * headers;
    const uint8_t *trap; /* one of its traps, NULL where it has none */
} looked_at_module;
static looked_at_module looked_at[MAX_MODULES];
static int looked_at_count;
static _Atomic unsigned long long modules_seen;
static unsigned long long unloads_seen;
static _Thread_local bool inside; /* in patch_loaded, whose callees look up functions, which calls it again */
static patch_totals totals;

_Noreturn static void give_up(const char *what) {
    fprintf(stderr, "cxlemu: flushes and fences of the program cannot be followed: %s\n", what);
    _exit(2);
}

patch_totals patch_total(void) { return totals; }

static void hold(void) {
    while (atomic_flag_test_and_set_explicit(&patching, memory_order_acquire)) syscall(SYS_sched_yield);
}

static void let_go(void) { atomic_flag_clear_explicit(&patching, memory_order_release); }

/* --- the table ------------------------------------------------------------------------------------------------------- */

static uint32_t slot_of(const uint8_t *after) {
    return (uint32_t)((uint64_t)(uintptr_t)after * UINT64_C(0x9E3779B97F4A7C15) >> 40) % TABLE;
}

static const patch_site *find(const uint8_t *after) {
    for (uint32_t k = slot_of(after);; k = (k + 1) % TABLE) {
        const entry *e = atomic_load_explicit(&table[k], memory_order_acquire);
        if (!e || e->after == after) return e ? e->site : NULL;
    }
}

const patch_site *patch_find(const uint8_t *after, bool *aside) {
    const patch_site *site = find(after);
    *aside = site && after != site->at + 1;
    return site;
}

const uint8_t *patch_stopping(const patch_site *site) { return site->slot + STOPPING_AT; }

/* Add an entry, or replace that of an unloaded module at the same address. */
static void add(entry *e) {
    uint32_t k = slot_of(e->after);
    for (const entry *there; (there = atomic_load_explicit(&table[k], memory_order_relaxed)); k = (k + 1) % TABLE)
        if (there->after == e->after) break;
    entries_used += !table[k];
    atomic_store_explicit(&table[k], e, memory_order_release);
}

/* --- copies of instructions -------------------------------------------------------------------------------------------- */

/* Map pages before the module, within 2 GiB, so that a copied operand relative to rip reaches its place from them.
 * Return NULL where there is no room. */
static uint8_t *pages_near(const uint8_t *module, size_t nbytes) {
    uintptr_t at = ((uintptr_t)module & ~(uintptr_t)(NEAR_STEP_BYTES - 1)) - nbytes / NEAR_STEP_BYTES * NEAR_STEP_BYTES;
    for (int k = 0; k < NEAR_STEPS && at > 2 * NEAR_STEP_BYTES; k++) {
        at -= NEAR_STEP_BYTES;
        const long found = syscall(SYS_mmap, at, nbytes, PROT_READ | PROT_WRITE,
                                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0L);
        if ((uintptr_t)found == at) return (uint8_t *)at;
        if (found >= 0) syscall(SYS_munmap, found, nbytes); /* older kernels ignore the flag and choose an address */
    }
    return NULL;
}

/* Copy a site's instruction. Return false where the copy does not reach its operand. */
static bool copy_to(uint8_t *to, const patch_site *site) {
    const x86_instruction *i = &site->instruction;
    memcpy(to, site->at, i->length);
    if (!i->displacement_at) return true;
    const int64_t moved = i->memory.displacement + (int64_t)((intptr_t)site->at - (intptr_t)to);
    const int32_t displacement = (int32_t)moved;
    memcpy(to + i->displacement_at, &displacement, sizeof displacement);
    return displacement == moved;
}

static void fill_slot(uint8_t *slot, const patch_site *site) {
    const uint8_t jump[] = {0xFF, 0x25, 0, 0, 0, 0}; /* to the address that stands behind it */
    const uint8_t *next = site->at + site->instruction.length;
    uint8_t *end = slot + site->instruction.length;
    if (!copy_to(slot, site) || !copy_to(slot + STOPPING_AT, site)) give_up("a module is too large");
    memcpy(end, jump, sizeof jump);
    memcpy(end + sizeof jump, &next, sizeof next);
    slot[STOPPING_AT + site->instruction.length] = TRAP;
}

static bool room_for(size_t sites) { return entries_used + 2 * sites <= 2 * (size_t)MAX_SITES; }

/* --- a module ---------------------------------------------------------------------------------------------------------- */

typedef struct {
    patch_site *items;
    size_t count, room;
    bool flushes;
} found_sites;

static bool note(const uint8_t *at, const x86_instruction *instruction, void *context) {
    found_sites *found = context;
    if (found->count == found->room) {
        found->room = found->room ? 2 * found->room : 64;
        found->items = realloc(found->items, found->room * sizeof *found->items);
        if (!found->items) give_up("no memory");
    }
    const enum x86_kind kind = instruction->kind;
    found->flushes |= kind == X86_CLFLUSH || kind == X86_CLFLUSHOPT || kind == X86_CLWB || kind == X86_NT_STORE;
    found->items[found->count++] = (patch_site){.at = at, .instruction = *instruction};
    return room_for(found->count);
}

/* Write a trap into code through /proc/self/mem, as a debugger does, because its pages may be read-only. */
static void write_trap(int memory, const uint8_t *at) {
    const uint8_t trap = TRAP;
    if (syscall(SYS_pwrite64, memory, &trap, 1, at) != 1) give_up("/proc/self/mem does not let its code be written");
}

static void patch(const found_sites *found) {
    const size_t nbytes = (found->count * SLOT_BYTES + 4095) / 4096 * 4096;
    uint8_t *slots = pages_near(found->items[0].at, nbytes);
    entry *entries = calloc(2 * found->count, sizeof *entries);
    const int memory = (int)syscall(SYS_openat, AT_FDCWD, "/proc/self/mem", O_RDWR | O_CLOEXEC);
    if (!slots || !entries) give_up("no room near a module");
    if (memory < 0) give_up("/proc/self/mem cannot be opened");
    for (size_t k = 0; k < found->count; k++) {
        patch_site *site = &found->items[k];
        site->slot = slots + k * SLOT_BYTES;
        fill_slot(slots + k * SLOT_BYTES, site);
        entries[2 * k] = (entry){site->at + 1, site};
        entries[2 * k + 1] = (entry){site->slot + STOPPING_AT + site->instruction.length + 1, site};
    }
    if (syscall(SYS_mprotect, slots, nbytes, PROT_READ | PROT_EXEC) != 0) give_up("no executable pages");
    for (size_t k = 0; k < 2 * found->count; k++) add(&entries[k]);
    for (size_t k = 0; k < found->count; k++) write_trap(memory, found->items[k].at);
    syscall(SYS_close, memory);
}

/* Drop fences of loads in a module that never flushes; patch_module leaves its locked instructions out as well. Such
 * modules use both for threads only, and a trap at each would cost time and find nothing. */
static void keep_what_matters(found_sites *found) {
    size_t kept = 0;
    for (size_t k = 0; k < found->count; k++)
        if (found->flushes || found->items[k].instruction.kind != X86_LFENCE) found->items[kept++] = found->items[k];
    found->count = kept;
}

/* Patch a module. Return the place of its first trap, or NULL if it has none. */
static const uint8_t *patch_module(const loaded_module *module, bool recompiled) {
    found_sites found = {0};
    scan_count count = scan_module(module, false, note, &found);
    if (found.flushes && !recompiled) {
        found.count = 0;
        count = scan_module(module, true, note, &found);
    }
    if (!room_for(found.count)) give_up("it has more than 65,536 flushes and fences");
    keep_what_matters(&found);
    totals.undecoded += count.undecoded;
    totals.without_table += !count.table.has_table;
    if (found.count == 0) {
        free(found.items);
        return NULL;
    }
    totals.modules++;
    totals.sites += (int64_t)found.count;
    patch(&found); /* the table refers to its items, so they are never freed */
    return found.items[0].at;
}

/* --- all modules --------------------------------------------------------------------------------------------------------- */

static bool left_alone(const struct dl_phdr_info *info, const loaded_module *module) {
    const char *slash = strrchr(info->dlpi_name, '/'), *name = slash ? slash + 1 : info->dlpi_name;
    for (size_t k = 0; k < sizeof LEFT_ALONE / sizeof *LEFT_ALONE; k++)
        if (strncmp(name, LEFT_ALONE[k], strlen(LEFT_ALONE[k])) == 0) return true;
    for (int32_t k = 0; k < module->segment_count; k++) { /* this library */
        const uint8_t *ours = (const uint8_t *)(uintptr_t)&patch_loaded;
        if (ours >= module->segments[k].begin && ours < module->segments[k].end) return true;
    }
    return false;
}

/* Notes about modules, taken in callbacks that the linker calls with its lock held. It holds that lock for the
 * program's callbacks as well, which may look up functions. So no callback waits for `patching`, and the thread that
 * holds `patching` does not call the linker. */
typedef struct {
    const ElfW(Phdr) * headers;
    loaded_module its;
    bool recompiled;
} noted_module;
typedef struct {
    noted_module items[MAX_MODULES];
    int count;
    unsigned long long adds, subs; /* how many modules had been loaded and unloaded by then */
} noted_modules;

static int note_module(struct dl_phdr_info *info, size_t size, void *context) {
    noted_modules *noted = context;
    noted_module *next = &noted->items[noted->count];
    (void)size;
    noted->adds = info->dlpi_adds, noted->subs = info->dlpi_subs;
    if (noted->count == MAX_MODULES) give_up(TOO_MANY_MODULES);
    if (!loaded_module_from(info->dlpi_addr, info->dlpi_phdr, info->dlpi_phnum, &next->its)) return 0;
    if (left_alone(info, &next->its)) return 0;
    next->headers = info->dlpi_phdr, next->recompiled = module_recompiled(info), noted->count++;
    return 0;
}

static int count_modules(struct dl_phdr_info *info, size_t size, void *context) {
    (void)size;
    *(unsigned long long *)context = info->dlpi_adds;
    return 1;
}

/* Return the machine's time in microseconds; clock_gettime would return the run's. */
static int64_t now_us(void) {
    struct timespec now;
    syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &now);
    return now.tv_sec * INT64_C(1000000) + now.tv_nsec / 1000;
}

static bool holds_trap(int memory, const uint8_t *at) {
    uint8_t byte = 0;
    return at && syscall(SYS_pread64, memory, &byte, 1, at) == 1 && byte == TRAP;
}

/* Forget modules whose traps are gone, after libraries were unloaded. A module loaded in such a place is not patched
 * yet, even if it is the same library. */
static void forget_unloaded(void) {
    const int memory = (int)syscall(SYS_openat, AT_FDCWD, "/proc/self/mem", O_RDONLY | O_CLOEXEC);
    for (int k = looked_at_count - 1; k >= 0; k--)
        if (!holds_trap(memory, looked_at[k].trap)) looked_at[k] = looked_at[--looked_at_count];
    syscall(SYS_close, memory);
}

static void look_at(const noted_module *module) {
    for (int k = 0; k < looked_at_count; k++)
        if (looked_at[k].headers == module->headers) return;
    if (looked_at_count == MAX_MODULES) give_up(TOO_MANY_MODULES);
    looked_at[looked_at_count++] = (looked_at_module){module->headers, patch_module(&module->its, module->recompiled)};
}

static void patch_new_ones(void) {
    const int64_t from = now_us();
    noted_modules *noted = malloc(sizeof *noted);
    if (!noted) give_up("no memory");
    noted->count = 0;
    dl_iterate_phdr(note_module, noted);
    hold();
    if (noted->adds > modules_seen) { /* otherwise another thread noted later than this one, and has patched them */
        if (noted->subs != unloads_seen) forget_unloaded();
        unloads_seen = noted->subs;
        for (int k = 0; k < noted->count; k++) look_at(&noted->items[k]);
        modules_seen = noted->adds;
    }
    totals.microseconds += now_us() - from;
    let_go();
    free(noted);
}

void patch_loaded(void) {
    unsigned long long adds = 0;
    const int saved = errno;
    if (inside) return;
    inside = true;
    dl_iterate_phdr(count_modules, &adds);
    if (adds != modules_seen) patch_new_ones();
    inside = false;
    errno = saved;
}

#endif
