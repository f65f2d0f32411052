/* The checker judges in one pass over the trace whether every load sees, in all executions, what it should:
 *
 *     manifest    the load returned an older version than one that its host already knows of
 *     predictive  it returned the right one, but a link of the chain is missing: another execution returns an older one
 *
 * The rules are those of faults/prove. A host knows its own stores, what another host did before a store that it has seen
 * (versions, reads-from), and what had ended before one of its processes started. Clocks are numbers of steps. All
 * threads of a host count as one that takes its steps in the order of the trace, because their caches are coherent, and what
 * they tell each other outside of the pool is not seen. A fence, however, completes only the flushes of its own thread.
 *
 *   check.c         the watcher: takes steps and moves one after another
 *   check_store.c   stores: which versions they make
 *   check_copies.c  copies by devices, each of them a store that happens at any time
 *   check_line.c    versions: which store each word of the pool, of a cache and of a write-back comes from
 *   check_know.c    knowledge: what each host knows of the others
 *   check_rules.c   rules: which link of the chain is missing, and the findings */
#ifndef CXLEMU_CHECK_H
#define CXLEMU_CHECK_H

#include <string.h>

#include "device.h"
#include "finding.h"
#include "program.h"

extern const program_watcher checker;

enum check_extra { EXTRA_STUCK, EXTRA_SFENCE, EXTRA_TOLD_BY_START, EXTRA_FLUSH_LATE }; /* program_finding.extra */
enum stuck { FOR_EVER = 1, SO_FAR }; /* EXTRA_STUCK, of a run that hangs, or was given up */

enum {
    LINE_WORDS = 8,
    WORD = 8,
    ALL_WORDS = 0xFF,
    CHUNK_WRITES = 2,
    CHUNK_COPIES = 2,
    CHUNKS = 7,
    WRITES = CHUNK_WRITES * CHUNKS
};

/* A version: a store to bytes of one line, by one thread at one place. `edges` says how many bytes at the begin of its first word
 * it leaves out, and, 3 bits higher, at the end of its last one. */
typedef struct {
    uint32_t time; /* its step; 0: this entry is free */
    uint32_t landed; /* the step of the fence that completed its flush; 0: not yet */
    uint32_t witnessed; /* the step at which another host, `witness`, first saw it in the pool; 0: not yet */
    uint16_t site, flush, fence;
    /* hosts, as bits: those that dropped the line after it had landed, and fenced (fresh) or not yet (dropping); that saw it */
    uint16_t fresh, dropping, seen;
    uint8_t host : 4, witness : 4;
    uint8_t words, edges, state, thread, flushed[3]; /* flushed: its last 24 bits */
    uint8_t hash[LINE_WORDS];
} check_write;
/* WRITE_OPEN: a device's copy, whose event nobody has seen: it may happen at any time since `time`, when it was asked for. */
enum write_state {
    WRITE_FLUSHED = 1,
    WRITE_LEFT = 2,
    WRITE_NT = 4,
    WRITE_LOCKED = 8,
    WRITE_LOST = 16,
    WRITE_OPEN = 32,
    WRITE_TELLS = 64, /* of a locked instruction: its own word told another host of it */
};

/* Return the step at which a store that was flushed was first flushed. */
static inline uint32_t flushed_at(const check_write *w) {
    const uint32_t low = w->flushed[0] | (uint32_t)w->flushed[1] << 8 | (uint32_t)w->flushed[2] << 16;
    return w->time + ((low - w->time) & 0xFFFFFF);
}

/* Return which bytes of its line a store wrote, as bits. */
static inline uint64_t written(const check_write *w) {
    if (w->words == ALL_WORDS && !w->edges) return UINT64_MAX;
    const uint64_t each = w->words * UINT64_C(0x0101010101010101) & UINT64_C(0x8040201008040201);
    const uint64_t whole = ((each + UINT64_C(0x7F7F7F7F7F7F7F7F)) >> 7 & UINT64_C(0x0101010101010101)) * 0xFF;
    if (!w->edges) return whole;
    const int first = __builtin_ctz(w->words) * WORD, last = (31 - __builtin_clz(w->words)) * WORD;
    return whole & UINT64_MAX << (first + (w->edges & 7)) &
           UINT64_MAX >> (PROGRAM_LINE - WORD - last + (w->edges >> 3));
}

/* Let a version be of these bytes; returns false where it cannot be, as bytes are left out in the middle. */
static inline bool write_bytes(check_write *w, unsigned words, uint64_t bytes) {
    const int head = __builtin_ctzll(bytes) % WORD, tail = __builtin_clzll(bytes) % WORD;
    w->words = (uint8_t)words, w->edges = (uint8_t)(head | tail << 3);
    return written(w) == bytes;
}

/* What a host's cache and its posted write-back hold of a line: for each word the number of a write, 0 for the bytes that the
 * run began with. */
typedef struct {
    uint32_t cached, posted;
    uint32_t dropped; /* the last flush that drops it, or 0 */
    uint16_t drop_site;
    uint8_t drop_thread;
    uint8_t host : 6, loaded : 1, present : 1; /* host + 1; 0: this entry is free. loaded: since it was dropped */
} check_copy;

/* What the checker keeps of a line, in chunks of 128 bytes. A line with more than two hosts or versions has further chunks,
 * in the room. */
typedef struct {
    uint32_t pool; /* as check_copy.cached */
    uint32_t next_line; /* the line that was touched before this one, + 1 */
    uint32_t more; /* the next chunk, in the room; 0: none */
    uint8_t next_pool, touched, tells; /* tells: the words through which hosts learn of each other, as bits */
    uint8_t overtakes; /* the last host, + 1, whose drop may overtake the load that told it of a store here */
    check_copy copy[CHUNK_COPIES];
    check_write write[CHUNK_WRITES];
} check_line;
_Static_assert(sizeof(check_line) == WATCHER_LINE_BYTES, "a line is what the area has room for");

/* --- check_line.c ---------------------------------------------------------------------------------------------------------- */

enum { UNIT = 16 }; /* bytes of the room */
static inline void *room_at(uint32_t unit) { return program_watcher_room + (size_t)unit * UNIT; }
uint32_t room_take(size_t nbytes); /* returns where zeros lie, in units; 0: there is no room left */

void line_touched(int pool, int64_t number);
static inline check_line *line_noted(check_line *line, int pool, int64_t number) {
    if (__builtin_expect(!line->touched, 0)) line_touched(pool, number);
    return line;
}
static inline check_line *line_at(int pool, int64_t number) { /* also notes that the line was touched */
    return line_noted((check_line *)(void *)program_watcher_line(pool, number), pool, number);
}

check_copy *line_new_copy(check_line *line, int host);
static inline check_copy *line_copy(check_line *line, int host) {
    for (int k = 0; k < CHUNK_COPIES; k++)
        if (line->copy[k].host == host + 1) return &line->copy[k];
    return line_new_copy(line, host);
}

/* Return a write by its number; NULL for 0, and where it is not in use. */
static inline check_write *line_write(check_line *line, uint32_t number) {
    if (!number) return NULL;
    for (; number > CHUNK_WRITES; number -= CHUNK_WRITES) {
        if (!line->more) return NULL;
        line = room_at(line->more);
    }
    return line->write[number - 1].time ? &line->write[number - 1] : NULL;
}

static inline check_write *line_slot(check_line *line, uint32_t number) { /* the same of one that is there */
    for (; number > CHUNK_WRITES; number -= CHUNK_WRITES) line = room_at(line->more);
    return &line->write[number - 1];
}

/* All writes of a line that are in use and not lost in a crash. */
#define EACH_WRITE(line, w)                                                                                         \
    for (const check_line *chunk_##w = (line); chunk_##w;                                                           \
         chunk_##w = chunk_##w->more ? room_at(chunk_##w->more) : NULL)                                             \
        for (check_write *w = (check_write *)(uintptr_t)chunk_##w->write; w < chunk_##w->write + CHUNK_WRITES; w++) \
            if (w->time && !(w->state & WRITE_LOST))

/* Return the write of a line that is newest; for each of its words it is the newest one, too. */
static inline check_write *line_last(const check_line *line) {
    check_write *newest = NULL;
    EACH_WRITE(line, w)
    if (!newest || w->time > newest->time) newest = w;
    return newest;
}

/* Whether no write of a line is newer than this one. */
static inline bool line_is_last(const check_line *line, const check_write *last) {
    EACH_WRITE(line, w)
    if (w->time > last->time) return false;
    return true;
}

/* Whether no other host has stored to a line. */
static inline bool line_alone(const check_line *line, int host) {
    for (const check_line *chunk = line; chunk; chunk = chunk->more ? room_at(chunk->more) : NULL)
        for (int k = 0; k < CHUNK_WRITES; k++)
            if (chunk->write[k].time && chunk->write[k].host != host) return false;
    return true;
}

/* Whether any store to a line went past the cache. */
static inline bool line_has_nt(const check_line *line) {
    unsigned states = line->write[0].state | line->write[1].state;
    for (; __builtin_expect(line->more, 0); states |= line->write[0].state | line->write[1].state)
        line = room_at(line->more);
    return states & WRITE_NT;
}

uint32_t line_add(check_line *line); /* returns the number of a new write, all zeros */
bool line_is_full(check_line *line); /* whether a version has to go before another one can be noted */
uint16_t line_dropped_since(check_line *line, uint32_t time); /* returns hosts, as bits */
check_write *line_newest(check_line *line, int word, int not_of); /* not_of: a host to leave out, or -1 */
/* The newest store to any of these bytes that is no later than `got`, which a copy of the line holds. */
check_write *line_holds(check_line *line, check_write *got, uint64_t bytes);

static inline uint8_t hash_of(const uint8_t *word) {
    uint64_t value;
    memcpy(&value, word, sizeof value);
    return (uint8_t)(value * UINT64_C(0x9E3779B97F4A7C15) >> 56);
}

/* What check_line.pool and check_copy's words hold: a write's number for each word of the line, often the same one for all. */
static inline uint32_t held(uint32_t words, int word) { return words >> 4 * word & 15; }
static inline uint32_t all_held(uint32_t number) { return number * UINT32_C(0x11111111); }
static inline bool holds_one(uint32_t words) { return words == all_held(words & 15); }
static inline uint32_t with_held(uint32_t words, int word, uint32_t number) {
    return (words & ~(UINT32_C(15) << 4 * word)) | number << 4 * word;
}

/* --- check_know.c ---------------------------------------------------------------------------------------------------------- */

typedef struct {
    uint32_t time, knows[PROGRAM_HOSTS];
} check_knowledge;

enum { LOG = 512, LOADS = 4, REPORTED = 2048, EXPECTED = 64 };

typedef struct {
    bool born, unsure;
    uint32_t knows[PROGRAM_HOSTS]; /* the last step that it knows of each host */
    uint32_t sure[PROGRAM_HOSTS]; /* where it is unsure, what it knew before: the rest perhaps */
    uint32_t knew_when_born[PROGRAM_HOSTS]; /* the same at its first process's start, when its caches were empty */
    uint32_t told[PROGRAM_HOSTS], told_before[PROGRAM_HOSTS]; /* the steps at which it last learned of each host */
    uint16_t published[PROGRAM_HOSTS], heard[PROGRAM_HOSTS]; /* the places of the store and the load by which it did */
    struct {
        uint32_t line, since; /* the line that it last stored to, + 1, and the first of these stores in a row */
        uint8_t pool, thread;
    } stored;
    uint32_t ended, ended_before; /* when its last process of `stage` ended, and of the stages before */
    int32_t stage;
    uint32_t crashed; /* the step of its crash; 0: none */
    uint32_t log_count, expected; /* how many there are in its logbook */
} check_host;

/* Of a host, apart from the others' heads: a process that starts looks at all of those. */
typedef struct {
    check_knowledge log[LOG]; /* a ring: what it knew, and from which step on */
    struct {
        uint8_t pool;
        int64_t begin, end;
    } expect[EXPECTED]; /* ranges whose loads may be stale */
} check_logbook;

typedef struct {
    uint32_t flushes; /* those that are not fenced yet, a list of nodes */
    uint32_t stores_fenced, all_fenced; /* the steps of its last fence of either kind */
    uint16_t store_fence, full_fence; /* and the places of these */
    uint32_t loads_fenced,
        told; /* the steps of its last fence of loads, and of the load by which it last learned something */
    uint8_t host;
    bool alive;
    uint16_t process;
    struct {
        uint32_t asked, seen; /* the steps at which it was asked for, and its event was seen; 0: not yet */
        uint8_t pool;
        int64_t offset, nbytes; /* what it writes of a pool */
    } copy; /* a device's */
    uint32_t load_count;
    struct {
        int64_t line;
        uint32_t time, times; /* the step of the last one, and how many there were since the thread last stored */
        uint16_t site;
        uint8_t pool, words;
    } load[LOADS]; /* its last loads, of different lines */
} check_thread;

/* Lines that were flushed, one step after another, and not fenced yet; or one that was stored to past the cache. */
typedef struct {
    uint32_t next, line, time;
    uint16_t lines;
    uint8_t pool, pad;
} check_node;

typedef struct {
    uint32_t used, free_node, free_chunk; /* in units of the room */
    uint32_t lines, chunks; /* how many lines were touched, and all of their chunks */
    uint32_t last_line; /* the line that was touched last, + 1 */
    uint8_t last_pool;
    bool begun, stuck, full;
    uint32_t reported, open_copies;
    uint32_t threads; /* no thread from this one on has begun */
    check_host host[PROGRAM_HOSTS];
    check_thread thread[PROGRAM_THREADS];
    program_finding
        report[REPORTED]; /* reported at the end, as what looks like a mistake may turn out to poll a flag */
    uint8_t tells[PROGRAM_SITES / 8]; /* the places of loads by which hosts learn of each other, as bits */
    check_logbook book[PROGRAM_HOSTS];
} check_room;

static inline check_room *room_now(void) { return (check_room *)(void *)program_watcher_room; }

void know_start(int host, int stage);
void know_end(int host, int stage, uint32_t now);
/* A host has seen another host's write, perhaps at least, and so knows all that came before it. */
void know_learn(int host, const check_write *seen, uint16_t heard_at, uint32_t now, bool perhaps);
static inline bool known(int host, const check_write *w) {
    return w->host == host || w->time <= room_now()->host[host].knows[w->host];
}
static inline bool known_for_sure(int host, const check_write *w) {
    const check_host *h = &room_now()->host[host];
    return known(host, w) && (!h->unsure || w->host == host || w->time <= h->sure[w->host]);
}
static inline bool known_landed(int host, const check_write *w) {
    if (w->landed && w->host == host) return true;
    if (w->seen >> host & 1) return true;
    const uint32_t *knows = room_now()->host[host].knows;
    if (w->witnessed && w->witnessed <= knows[w->witness]) return true;
    return w->landed && w->landed <= knows[w->host];
}

/* Whether a write is a device's last copy; and when its event was seen, which may be never. */
static inline bool is_copy(const check_write *w) { return room_now()->thread[w->thread].copy.asked == w->time; }
static inline uint32_t copy_seen_at(const check_write *w) {
    const uint32_t seen = room_now()->thread[w->thread].copy.seen;
    return seen ? seen : UINT32_MAX;
}

/* Whether a host has a device write, at any time until its event is seen; it is no step of this device itself, or of one that comes
 * later in its queue. */
static inline bool is_open(const program_step *step, const check_write *w) {
    if (!(w->state & WRITE_OPEN)) return false;
    const int by = step->kind == STEP_DEVICE_COPY ? step->other : step->thread;
    return w->host == step->host && w->thread != by && !device_is_before(w->thread, by);
}

static inline bool has_seen(const program_step *step, const check_write *w) {
    if (w->host == step->host) return !is_open(step, w);
    return w->seen >> step->host & 1 && known(step->host, w);
}

/* Whether a host's drop of a line is complete, as the thread that flushed it has made a full fence: later loads of this host fetch it
 * anew. */
static inline bool is_dropped(const check_copy *copy) {
    return copy->dropped && room_now()->thread[copy->drop_thread].all_fenced > copy->dropped;
}

static inline void write_dropped(check_write *w, uint16_t bit) {
    w->fresh |= w->dropping & bit;
    w->dropping &= (uint16_t)~bit;
}

static inline void complete_drop(check_line *line, check_copy *copy) {
    if (!is_dropped(copy)) return;
    EACH_WRITE(line, w) write_dropped(w, (uint16_t)(1u << (copy->host - 1)));
}

/* --- steps --------------------------------------------------------------------------------------------------------------- */

static inline check_thread *thread_of(const program_step *step) { return &room_now()->thread[step->thread]; }
static inline uint32_t time_of(const program_step *step) { return (uint32_t)step->number; }

/* An access to a line, in a step. */
typedef struct {
    const program_step *step;
    check_line *line;
    int64_t number;
    bool coherent; /* whether the caches of all hosts agree on it */
    bool by_device; /* whether a device stores */
} check_touch;

/* Return which words of a line a step touches, as bits. */
static inline unsigned words_of(const program_step *step, int64_t number) {
    const int64_t begin = step->offset - number * PROGRAM_LINE, end = begin + step->nbytes;
    if (begin <= 0 && end >= PROGRAM_LINE) return ALL_WORDS;
    const int first = begin > 0 ? (int)(begin / WORD) : 0;
    const int last = end < PROGRAM_LINE ? (int)((end + WORD - 1) / WORD) : LINE_WORDS;
    return (0xFFu << first & 0xFFu) & (0xFFu >> (LINE_WORDS - last));
}

static inline bool inside(const program_step *step) { return step->pool < PROGRAM_POOLS && step->nbytes > 0; }

static inline check_touch touch_of(const program_step *step, int64_t number) {
    const bool coherent = program_coherent_anywhere && program_coherent(step->pool, number);
    return (check_touch){step, line_at(step->pool, number), number, coherent, false};
}

/* `touched` is a check_touch, of one line after another. `continue` goes to the next one; nothing may break. */
#define EACH_LINE(step, touched)                                                                                 \
    for (int64_t number_##touched = (step)->offset / PROGRAM_LINE,                                               \
                 end_##touched = ((step)->offset + (step)->nbytes + PROGRAM_LINE - 1) / PROGRAM_LINE;            \
         number_##touched < end_##touched && !room_now()->full; number_##touched++)                              \
        for (check_touch touched = touch_of(step, number_##touched), *once_##touched = &touched; once_##touched; \
             once_##touched = NULL)

/* Return which bytes of its line an access touches, as bits. */
static inline uint64_t touched_bytes(const check_touch *t) {
    const int64_t begin = t->step->offset - t->number * PROGRAM_LINE, end = begin + t->step->nbytes;
    const uint64_t behind = end < PROGRAM_LINE ? UINT64_MAX << end : 0;
    return (begin > 0 ? UINT64_MAX << begin : UINT64_MAX) & ~behind;
}

static inline uint64_t bytes_of_word(int word) { return UINT64_C(0xFF) << word * WORD; }

void check_lands(check_write *w, const program_step *by);
/* Judge a load of words of a line; `line_bytes` may be NULL. */
void check_load_line(const check_touch *t, unsigned words, const uint8_t *line_bytes);
void check_fence_all(const program_step *step);
/* Lines that were flushed by this step, and those behind it, or stored to past the cache, land at the thread's next fence. */
void check_await_fence(const program_step *step, int64_t line, uint16_t lines);

/* --- check_store.c, check_copies.c ---------------------------------------------------------------------------------------- */

void store_noted(const program_step *step, const uint8_t *before, const uint8_t *after);
void store_beside(const check_touch *t, unsigned words); /* asks the rule, where others store to the line as well */
/* Return the number of the copy that is open on a line, of a device's thread; 0: there is none. */
uint32_t copy_open_number(check_line *line, int thread);
void copy_begins(const program_step *step);
void copy_seen(const program_step *step);
void copy_dies(check_write *w); /* if it is one: its host has crashed */

/* --- check_rules.c ----------------------------------------------------------------------------------------------------------- */

void rule_hear(const check_touch *t, unsigned words); /* for a load of a coherent line */
void rule_load_words(const check_touch *t, unsigned words, check_copy *copy, const uint8_t *line_bytes);
void rule_store_beside(const check_touch *t, unsigned words); /* to a line to which other hosts store as well */
void rule_flush_beside(const check_touch *t); /* of such a line, where it is dirty */
void rule_msync(const check_touch *t);
void rule_outside(const program_step *step);
void rule_stuck(int thread, int load);
void rule_dirty_at_exit(int pool, int64_t number, check_line *line);
void rule_out_of_room(void);
void rule_tell_all(void);

#endif
