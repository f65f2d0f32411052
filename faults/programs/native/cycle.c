/* Hangs: a thread that comes to a step in the state in which it came to one before, while nobody has stored anything, goes round in
 * a cycle. Its state is its registers, its stack and its process's private memory. When all threads do, the run never ends. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <unwind.h>

#include "real.h"
#include "record.h"
#include "self.h"

enum { WINDOW = 16, TRIES = 8 }; /* a thread is looked at in a 16th of the steps, its memory eight times in it */
enum { ROUNDS = 4 }; /* of threads that share private memory; of a thread by itself, one closes its cycle */
enum {
    KERNELS = 32,
    STACK_MOST = 8 << 20,
    RED_ZONE = 128,
    PAGE = 4096,
    PIECE = 1 << 16,
    MAPS = 1 << 18,
    MAPPINGS_MOST = 1 << 12
};
#define MEMORY_MOST (UINT64_C(256) << 20)
#define MEMORY_SMALL (UINT64_C(1) << 20)

extern void *__libc_stack_end;
static program_self *threads_here[PROGRAM_THREADS];
static stack_t handler_stacks[PROGRAM_THREADS]; /* of threads that have one: this library's handlers run there, too */

static uint64_t mixed(uint64_t all, uint64_t word) {
    all = (all ^ word) * UINT64_C(0xD6E8FEB86659FD93);
    return all ^ all >> 29;
}

typedef uint64_t __attribute__((aligned(1), may_alias)) word_anywhere;
__extension__ typedef unsigned __int128 product_of_words;

/* In lanes, so that no multiplication waits for the one before; each takes two words, one of them with a number that no program stores.
 * All memory is read, which a sanitizer of the program has partly forbidden: by plain loads, as it judges those of memcpy, too. */
__attribute__((no_sanitize("address"))) static uint64_t mixed_bytes(uint64_t all, const uint8_t *bytes, size_t nbytes) {
    enum { LANES = 8 };
    const word_anywhere *word = (const word_anywhere *)bytes, *end = word + nbytes / sizeof *word;
    uint64_t lanes[LANES] = {0, 1, 2, 3, 4, 5, 6, 7};
    for (; end - word >= 2 * LANES; word += 2 * LANES)
        for (int lane = 0; lane < LANES; lane++) {
            const product_of_words its = (product_of_words)(lanes[lane] ^ word[2 * lane]) *
                                         (word[2 * lane + 1] ^ UINT64_C(0xE7037ED1A0B428DB));
            lanes[lane] = (uint64_t)its ^ (uint64_t)(its >> 64);
        }
    for (int lane = 0; lane < LANES; lane++) all = mixed(all, lanes[lane]);
    while (word < end) all = mixed(all, *word++);
    return all;
}

/* --- registers and stack --------------------------------------------------------------------------------------------- */

typedef struct {
    uint64_t hash;
    uintptr_t sp;
    int frames;
} found_frame;

typedef struct {
    uintptr_t from, to;
} span;

/* Where this library lies; and its variables of a thread, counted from `self`. */
typedef struct {
    span image, tls;
} places_of_ours;

static int find_ours(struct dl_phdr_info *its, size_t size, void *found) {
    span all = {UINTPTR_MAX, 0}, tls = {0};
    (void)size;
    for (int k = 0; k < its->dlpi_phnum; k++) {
        const uintptr_t from = its->dlpi_addr + its->dlpi_phdr[k].p_vaddr, to = from + its->dlpi_phdr[k].p_memsz;
        if (its->dlpi_phdr[k].p_type == PT_TLS) {
            tls.from = (uintptr_t)its->dlpi_tls_data - (uintptr_t)&self;
            tls.to = tls.from + its->dlpi_phdr[k].p_memsz;
        }
        if (its->dlpi_phdr[k].p_type != PT_LOAD) continue;
        if (from < all.from) all.from = from;
        if (to > all.to) all.to = to;
    }
    if ((uintptr_t)find_ours < all.from || (uintptr_t)find_ours >= all.to) return 0;
    *(places_of_ours *)found = (places_of_ours){all, tls};
    return 1;
}

static const places_of_ours *ours(void) {
    static places_of_ours its;
    if (!its.image.to) dl_iterate_phdr(find_ours, &its);
    return &its;
}

static bool is_ours(uintptr_t at) { return at >= ours()->image.from && at < ours()->image.to; }

/* Find the program's innermost frame: the one that called this library, or that a trap or a fault of its own interrupted. Only in the
 * latter are all registers known, and that frame comes after the system's. */
static _Unwind_Reason_Code find_frame(struct _Unwind_Context *frame, void *to) {
#if defined(__x86_64__)
    static const int kept[] = {3, 6, 12, 13, 14, 15}, all[] = {0, 1, 2, 3, 4, 5, 6, 8, 9, 10, 11, 12, 13, 14, 15};
    enum { ALL = 15, KEPT = 6 };
#else
    static const int kept[] = {19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29}, *const all = kept;
    enum { ALL = 11, KEPT = 11 };
#endif
    found_frame *found = to;
    int interrupted = 0;
    const uintptr_t at = _Unwind_GetIPInfo(frame, &interrupted);
    if (found->frames == 0 && is_ours(at)) return _URC_NO_REASON;
    if (found->frames == 1 && !interrupted) return _URC_END_OF_STACK;
    found->hash = mixed((uint64_t)interrupted, at);
    for (int k = 0; k < (interrupted ? ALL : KEPT); k++)
        found->hash = mixed(found->hash, _Unwind_GetGR(frame, interrupted ? all[k] : kept[k]));
    found->sp = _Unwind_GetCFA(frame) - (interrupted ? RED_ZONE : 0);
    return found->frames++ ? _URC_END_OF_STACK : _URC_NO_REASON;
}

static uint64_t mixed_lines(uint64_t all, const line_list *list) {
    for (int64_t k = 0; k < list->count; k++)
        all = mixed(mixed(all, (uint64_t)list->items[k].first), (uint64_t)list->items[k].last);
    return all;
}

/* Return a hash of what a thread's own next steps depend on, where it has come to the step `at`; 0 where that is not known. */
static uint64_t own_state(const program_self *me, uint64_t at) {
    found_frame found = {0};
    syscall(SYS_sigaltstack, NULL, &handler_stacks[me->thread]);
    _Unwind_Backtrace(find_frame, &found);
    const bool main = here.area->threads[me->thread].tid == here.area->threads[me->thread].pid;
    const uintptr_t top = main ? (uintptr_t)__libc_stack_end : (uintptr_t)&self;
    if (!found.frames || found.sp >= top || top - found.sp > STACK_MOST) return 0;
    found.hash = mixed_lines(mixed_lines(found.hash, &me->flushed), &me->lingering);
    const uintptr_t from = found.sp & ~(uintptr_t)7;
    return mixed_bytes(mixed(mixed(found.hash, me->outside_looks ^ timers_left() << 32), at), (const uint8_t *)from,
                       top - from) |
           1;
}

/* --- memory ---------------------------------------------------------------------------------------------------------- */

/* Memory that is none of the program's: this library, and what it keeps of each thread. */
static span left_out[6 * PROGRAM_THREADS + 1];
static int left_out_count;

static void leave_out(uintptr_t from, uintptr_t to) {
    const uintptr_t inside = (from + 7) & ~(uintptr_t)7; /* whole words are compared */
    if (inside < to) left_out[left_out_count++] = (span){inside, to & ~(uintptr_t)7};
}

static void leave_ours_out(void) {
    left_out_count = 0;
    leave_out(ours()->image.from, (ours()->image.to + PAGE - 1) & ~(uintptr_t)(PAGE - 1));
    for (int k = 0; k < here.area->thread_count; k++) {
        const program_self *its = threads_here[k];
        if (!its) continue;
        const uintptr_t aside = (uintptr_t)handler_stacks[k].ss_sp;
        leave_out((uintptr_t)its, (uintptr_t)(its + 1));
        leave_out((uintptr_t)its->flushed.items, (uintptr_t)(its->flushed.items + its->flushed.room));
        leave_out((uintptr_t)its->lingering.items, (uintptr_t)(its->lingering.items + its->lingering.room));
        leave_out(its->tls + ours()->tls.from, its->tls + ours()->tls.to);
        leave_out(its->kernels, its->kernels + KERNELS);
        leave_out(aside, aside + handler_stacks[k].ss_size);
    }
}

/* Return where a piece of the program's memory ends that begins at *at, or behind what is left out there. */
static uintptr_t piece_at(uintptr_t *at, uintptr_t to) {
    for (int k = 0; k < left_out_count; k++)
        if (*at >= left_out[k].from && *at < left_out[k].to) *at = left_out[k].to, k = -1;
    uintptr_t end = *at + PIECE < to ? *at + PIECE : to;
    for (int k = 0; k < left_out_count; k++)
        if (left_out[k].from > *at && left_out[k].from < end) end = left_out[k].from;
    return end;
}

/* Whether there is one thread, where the C library says so: no other could give memory back that is read in place. */
static bool is_alone(void) {
    static const char *alone;
    if (!alone && !(alone = dlsym(RTLD_DEFAULT, "__libc_single_threaded"))) alone = "";
    return *alone;
}

/* Copy memory; returns NULL where it is not all there. */
static const uint8_t *copied(uintptr_t from, uintptr_t to, int *memory) {
    static uint8_t piece[PIECE];
    if (*memory < 0) *memory = area_open("/proc/self/mem", O_RDONLY);
    return syscall(SYS_pread64, *memory, piece, to - from, from) == (long)(to - from) ? piece : NULL;
}

static bool hash_mapping(int *memory, uintptr_t from, uintptr_t to, bool in_place, uint64_t *all, uint64_t *nbytes) {
    for (uintptr_t at = from, end = piece_at(&at, to); at < to; at = end, end = piece_at(&at, to)) {
        const uint8_t *bytes = in_place ? (const uint8_t *)at : copied(at, end, memory);
        if (!bytes) return false;
        *all = mixed_bytes(*all, bytes, end - at), *nbytes += end - at;
    }
    return true;
}

static bool is_stack_of_thread(uintptr_t from, uintptr_t to) {
    for (int k = 0; k < here.area->thread_count; k++) {
        const program_thread *t = &here.area->threads[k];
        if (threads_here[k] && t->tid != t->pid && threads_here[k]->tls >= from && threads_here[k]->tls < to)
            return true;
    }
    return false;
}

/* Read what the system says of this process; returns its length, 0 where it is too long or cannot be read. */
static size_t read_own(const char *path, char *text, size_t room) {
    const int file = area_open(path, O_RDONLY);
    size_t count = 0;
    long got = file < 0 ? -1 : 1;
    while (got > 0 && count < room - 1)
        if ((got = syscall(SYS_read, file, text + count, room - 1 - count)) > 0) count += (size_t)got;
    text[count] = 0;
    if (file >= 0) syscall(SYS_close, file);
    return got == 0 ? count : 0;
}

/* Whether a mapping is AddressSanitizer's shadow: terabytes that say which bytes the program may touch. It has a page more. */
static bool is_shadow(uintptr_t from, uintptr_t to) {
    static void (*mapping)(size_t *scale, size_t *offset);
    static bool asked;
    size_t scale, offset;
    if (!asked) *(void **)&mapping = dlsym(RTLD_DEFAULT, "__asan_get_shadow_mapping"), asked = true;
    if (!mapping) return false;
    mapping(&scale, &offset);
    return from + PAGE >= offset && to <= offset + (UINTPTR_MAX >> 17 >> scale) + 1;
}

/* The process's private mappings without its stack, as it last listed them: that takes longer than to read what lies in them. */
static span mappings[MAPPINGS_MOST];
static int mappings_count; /* -1: there are too many, or they cannot be read */
static uint64_t mappings_hash, mappings_pages; /* how many pages there were in all of them */

/* Count the pages that this process has mapped. */
static uint64_t pages_mapped(void) {
    char text[128];
    return read_own("/proc/self/statm", text, sizeof text) ? strtoul(text, NULL, 10) : 0;
}

static void list_mapping(uintptr_t from, uintptr_t to) {
    const uintptr_t stack = (uintptr_t)__libc_stack_end;
    if ((from <= stack && stack < to) || is_shadow(from, to) || mappings_count < 0) return;
    if (mappings_count == MAPPINGS_MOST) mappings_count = -1;
    else mappings[mappings_count++] = (span){from, to};
}

/* PROCMAP_QUERY, since Linux 6.11: the first mapping at an address or behind it that has these flags. */
typedef struct {
    uint64_t nbytes, asked, at, from, to, flags;
} mapping_query;
enum { READABLE = 1, WRITABLE = 2, EXECUTABLE = 4, SHARED = 8, OR_NEXT = 16 };
#define QUERY_MAPPING UINT32_C(0xC0686611)

/* Ask for one mapping after another; returns whether the system answers. */
static bool ask_for_mappings(void) {
    mapping_query its = {.nbytes = sizeof its, .asked = READABLE | WRITABLE | OR_NEXT};
    const int saved = errno, file = area_open("/proc/self/maps", O_RDONLY);
    for (; syscall(SYS_ioctl, file, QUERY_MAPPING, &its) == 0; its.at = its.to)
        if (!(its.flags & (EXECUTABLE | SHARED))) list_mapping(its.from, its.to);
    const bool all = errno == ENOENT; /* there is none behind the last one */
    errno = saved;
    if (file >= 0) syscall(SYS_close, file);
    return all;
}

/* Read of all mappings where they lie, and what may be done there; returns whether there was room for them. */
static bool each_mapping(void (*with)(uintptr_t from, uintptr_t to, const char *how)) {
    static char text[MAPS];
    if (!read_own("/proc/self/maps", text, sizeof text)) return false;
    for (char *line = text, *end; (end = strchr(line, '\n')); line = end + 1) {
        char *rest;
        const uintptr_t from = strtoul(line, &rest, 16), to = strtoul(rest + 1, &rest, 16);
        *end = 0, with(from, to, rest + 1);
    }
    return true;
}

static void list_private(uintptr_t from, uintptr_t to, const char *how) {
    if (strncmp(how, "rw-p", 4) == 0) list_mapping(from, to);
}

static void fetch_small(uintptr_t from, uintptr_t to, const char *how) {
    enum { MOST = 2 << 20 };
    if (to - from > MOST || how[0] != 'r' || how[3] != 'p' || strstr(how, "[v")) return; /* [vdso] is the system's */
    const int memory = area_open("/proc/self/mem", O_RDWR);
    syscall(SYS_madvise, from, to - from, MADV_POPULATE_READ);
    syscall(SYS_pwrite64, memory, from, 1L, from);
    if (memory >= 0) syscall(SYS_close, memory);
}

/* A fork inherits the pages of a mapping only where the system looks after copies of them: since a byte was written there. */
void memory_ahead(void) { each_mapping(fetch_small); }

/* List them; returns whether they are the same as before. */
static bool list_mappings(void) {
    const uint64_t before = mappings_hash;
    mappings_pages = pages_mapped();
    mappings_count = 0;
    if (!ask_for_mappings() && !each_mapping(list_private)) mappings_count = -1;
    const size_t nbytes = mappings_count > 0 ? (size_t)mappings_count * sizeof *mappings : 0;
    mappings_hash = mixed_bytes(mixed((uint64_t)mappings_count, mappings_pages), (const uint8_t *)mappings, nbytes);
    return mappings_hash == before;
}

/* Return a hash of what lies in them without threads' stacks and what is ours; 0 where that cannot be known. */
static uint64_t hash_mappings(bool in_place, uint64_t *nbytes) {
    uint64_t all = 1;
    int memory = -1;
    bool known = mappings_count >= 0;
    leave_ours_out(), *nbytes = 0;
    for (int k = 0; known && k < mappings_count; k++) {
        const span its = mappings[k];
        if (is_stack_of_thread(its.from, its.to)) continue;
        known = *nbytes + (its.to - its.from) <= MEMORY_MOST &&
                hash_mapping(&memory, its.from, its.to, in_place, &all, nbytes);
    }
    if (memory >= 0) syscall(SYS_close, memory);
    return known ? all | 1 : 0;
}

REAL(int, sigaction, int, const struct sigaction *, struct sigaction *)

static sigjmp_buf before_fault;
static void on_fault(int number) { siglongjmp(before_fault, number); }

/* The same. A thread that is alone reads in place, up to a fault: to ask the system whether memory is there takes longer. */
static uint64_t private_memory(uint64_t *nbytes) {
    static const int faults[] = {SIGSEGV, SIGBUS};
    static struct sigaction of_program[2];
    const struct sigaction action = {.sa_flags = SA_NODEFER, .sa_handler = on_fault};
    volatile uint64_t all = 0;
    const bool alone = is_alone();
    for (int k = 0; alone && k < 2; k++) real_sigaction()(faults[k], &action, &of_program[k]);
    if (!alone) all = hash_mappings(false, nbytes);
    else if (sigsetjmp(before_fault, 0) == 0) all = hash_mappings(true, nbytes);
    for (int k = 0; alone && k < 2; k++) real_sigaction()(faults[k], &of_program[k], NULL);
    if (!all) mappings_pages = 0; /* perhaps one has gone: the next look lists them again */
    return all;
}

/* --- the run --------------------------------------------------------------------------------------------------------- */

/* Where the kernel writes on which processor a thread runs (rseq), whenever it likes, counted from the thread's own pointer. */
static ptrdiff_t kernels_offset(void) {
    const ptrdiff_t *its = dlsym(RTLD_DEFAULT, "__rseq_offset");
    return its ? *its : 0;
}

void cycle_thread(program_self *me, bool begins) {
    me->tls = (uintptr_t)&self, me->kernels = (uintptr_t)__builtin_thread_pointer() + (uintptr_t)kernels_offset();
    threads_here[me->thread] = begins ? me : NULL;
}

static bool is_over(int thread) {
    const uint32_t state = turn_state(thread);
    return state == THREAD_NONE || state == THREAD_ENDED || state == THREAD_CRASHED;
}

/* Whether another thread of its process went round with other private memory: one of both may have left its cycle since. */
static bool memory_differs(int thread) {
    const program_area *a = here.area;
    for (int k = 0; k < a->thread_count; k++)
        if (a->threads[k].process == a->threads[thread].process && !is_over(k) &&
            a->cycles[k].memory != a->cycles[thread].memory)
            return true;
    return false;
}

/* Return the fewest rounds that a thread of its process has gone, itself left out; more than ROUNDS where there is no other. */
static uint64_t rounds_of_others(int thread) {
    const program_area *a = here.area;
    uint64_t fewest = ROUNDS + 1;
    for (int k = 0; k < a->thread_count; k++) {
        if (k == thread || a->threads[k].process != a->threads[thread].process || is_over(k)) continue;
        const uint64_t its = a->cycles[k].since == a->written ? a->cycles[k].rounds : 0;
        if (its < fewest) fewest = its;
    }
    return fewest;
}

static bool all_in_cycles(void) {
    const program_area *a = here.area;
    for (int k = 0; k < a->thread_count; k++) {
        if (is_over(k)) continue;
        if (turn_state(k) == THREAD_STARTING || (a->cycles[k].since != a->written && !a->cycles[k].stays)) return false;
        if (memory_differs(k)) return false;
        if (!a->options.every && rounds_of_others(k) < ROUNDS) return false;
    }
    return true;
}

/* Return a hash of what its host's caches hold, and which lines are on their way. */
static uint64_t caches(uint64_t all) {
    for (int pool = 0; pool < here.area->options.pools; pool++) {
        const card_cache *c = &image_of(here.host, pool)->cache;
        const size_t lines = (size_t)here.area->extent[pool];
        all = mixed_bytes(mixed_bytes(all, c->state, (lines + 7) / 8 * 8), c->pending, (lines + 7) / 8 * 8);
        for (size_t k = 0; k < lines; k++)
            if (c->state[k] & PRESENT) all = mixed_bytes(all, c->data + k * LINE_BYTES, LINE_BYTES);
    }
    return all;
}

void cycle_round(const program_self *me) {
    program_area *a = here.area;
    if (!a->options.every || a->cycles[me->thread].since == a->written) return;
    a->cycles[me->thread].since = a->written;
    record_cycle(me->thread, a->steps - 1);
}

/* Whether a thread's process had the same memory at all steps of a round since a state of its past: a thread that shares it might have
 * seen another one in between. Where the past holds not all of its steps, that is not known. */
static bool only_looked(const program_self *me, int since) {
    if (turn_alone(me->thread)) return true;
    if (me->mark.base > 1) return false;
    for (int k = 0; k < me->past_count; k++)
        if (me->past[k].step > me->past[since].step && me->past[k].memory != me->past[since].memory) return false;
    return true;
}

/* Compares a thread's states at its steps with those before, since somebody stored: with each of the first ones, as each round that is made
 * before its cycle is seen has events to be tried in other orders; then with one after 1, 2, 4, ... more steps (Brent). */
void cycle_fold(program_self *me, uint64_t at) {
    program_area *a = here.area;
    thread_cycle *its = &a->cycles[me->thread];
    if (!a->threads[me->thread].idle_steps || its->stays) return;
    if (its->since == a->written) {
        if (!memory_differs(me->thread)) return;
        its->since = 0, me->past_count = 0; /* the other one may have let it go on */
    }
    const uint64_t own = own_state(me, at);
    if (!own) return; /* at an instruction that is unwound no further */
    const uint64_t state = caches(own); /* in other runs nature goes on moving lines in a hang, too */
    if (me->mark.since != its->news)
        me->past_count = 0, me->mark.since = its->news, me->mark.base = 1, me->mark.tries = 0;
    if (!mappings_pages) list_mappings(); /* and again where a cycle seems to close */
    int k = 0;
    while (k < me->past_count && me->past[k].state != state) k++;
    if (k == me->past_count && (k == PAST || (me->memory_bytes > MEMORY_SMALL && turn_alone(me->thread)))) {
        if (++me->mark.tries < me->mark.base) return;
        me->mark.base *= 2, me->mark.tries = 0;
    }
    const uint64_t memory = private_memory(&me->memory_bytes);
    enum cycle found;
    if (k < me->past_count && memory && memory == me->past[k].memory && only_looked(me, k) && list_mappings() &&
        (found = record_cycle(me->thread, me->past[k].step)) >= CYCLE_WAITS) {
        if (found == CYCLE_WAITS) its->since = a->written, its->memory = memory, me->past_count = k + 1;
        if (found == CYCLE_STAYS) its->stays = me->past[k].step + 1;
        if (!a->scripted && found != CYCLE_WOKEN) a->burst = 0;
        me->knows = me->past[k].knows;
    }
    if (k == me->past_count && k < PAST) me->past_count++;
    else if (k == PAST) k--;
    me->past[k].state = state, me->past[k].memory = memory, me->past[k].step = a->steps, me->past[k].knows = me->knows;
}

/* In runs that are no search. Threads that share private memory may each come to a state again although they go on: the others have done so
 * meanwhile. So all of them go round after round, and none begins one before all have ended the last: what counts anything in their memory,
 * or in one thread's state, has then stood still while each went round. */
bool cycle_closes(program_self *me, uint64_t at) {
    program_area *a = here.area;
    thread_cycle *its = &a->cycles[me->thread];
    if (a->options.every) return (its->stays || (a->written && its->since == a->written)) && all_in_cycles();
    const uint64_t still = a->steps - a->written;
    uint64_t base = a->options.idle_budget;
    while (still >= 2 * base) base *= 2;
    if (still - base >= base / WINDOW) return false;
    const bool round = its->since == a->written;
    const uint64_t others = round ? rounds_of_others(me->thread) : 0;
    if (round && (its->rounds == ROUNDS || others < its->rounds || others > ROUNDS)) return all_in_cycles();
    const uint64_t state = own_state(me, at);
    if (!state) return false; /* at an instruction that is unwound no further; another one of its loop will do */
    if (me->mark.since != a->written || me->mark.base != base)
        me->mark.since = a->written, me->mark.base = base, me->mark.state = state, me->mark.memory = me->mark.tries = 0,
        its->since = 0;
    else if (state == me->mark.state && me->mark.tries < TRIES) {
        const uint64_t before = me->mark.memory;
        list_mappings();
        me->mark.tries++, me->mark.memory = private_memory(&me->memory_bytes);
        its->since = 0;
        if (!before || before != me->mark.memory) return false;
        its->rounds = round ? its->rounds + 1 : 1, its->since = a->written, its->memory = before;
        return all_in_cycles();
    }
    return false;
}
