/* A host's image of the pool: moves its lines one by one, and reports each move to the watcher. Only the thread that has the
 * turn calls these functions. */
#ifndef CXLEMU_IMAGE_H
#define CXLEMU_IMAGE_H

#include <string.h>

#include "area.h"

typedef struct {
    int pool;
    int64_t first, last;
} pool_lines;

typedef struct {
    int pool;
    int64_t offset, nbytes;
} pool_range;

/* The thread and host for which lines move, and whether the program or nature moves them. */
typedef struct {
    int host;
    uint16_t thread;
    uint8_t cause;
} mover;

/* Bring lines into the cache, `dirty` where stores to them come next. Returns DONE, or why a load fails, with its line in
 * *broken. Of lines that the store of a range overwrites whole, nothing fails: it asks for none of their bytes. */
enum status image_touch(mover by, pool_lines lines, bool dirty, int64_t *broken);
enum status image_overwrite(mover by, const pool_range *range, int64_t *broken);

/* Flush a line: post it where it is dirty. Without `keep` it leaves the cache at the fence. */
void image_flush(mover by, int pool, int64_t line, bool keep);

/* Return the end of the run of lines, from the first on, that are in one state, with all stores reported: they may move at
 * once. There is none where somebody has to see each line move by itself. */
enum pending { NONE_PENDING, SOME_PENDING, ANY_PENDING }; /* any: some of them may be */
int64_t image_run(int host, pool_lines lines, uint8_t state, enum pending pending);

/* The same of lines that are not flushed yet, in any state, with nothing pending: at most ROW_LINES. And flush such lines. */
enum { ROW_LINES = 64 };
typedef struct {
    uint64_t present, dirty; /* bits from the first line on */
} row_states;
int64_t image_row(int host, pool_lines lines, row_states *row);
void image_flush_row(mover by, pool_lines lines, uint64_t dirty, bool keep);

static inline uint64_t row_bits(pool_lines lines) { /* those of a row's lines */
    return lines.last - lines.first < ROW_LINES ? (UINT64_C(1) << (lines.last - lines.first)) - 1 : UINT64_MAX;
}

/* Go on to the next run of lines whose bits are set, the first of which is that of the line run->last; false where there is none. */
static inline bool next_run(pool_lines *run, uint64_t *bits) {
    if (!*bits) return false;
    const int gap = __builtin_ctzll(*bits);
    const uint64_t others = ~(*bits >> gap);
    const int count = others ? __builtin_ctzll(others) : ROW_LINES;
    run->first = run->last + gap, run->last = run->first + count;
    *bits = count < ROW_LINES ? *bits >> gap >> count : 0;
    return true;
}

/* Whether a host has a process that is not recompiled: its lines are never absent, and its stores are found by comparing. */
static inline bool in_pages(int host) { return here.area->pages_hosts >> host & 1; }

/* Report what was stored to the line since the last look, on such a host. */
void image_find_stores_there(mover by, int pool, int64_t line);
static inline void image_find_stores(mover by, int pool, int64_t line) {
    if (in_pages(by.host)) image_find_stores_there(by, pool, line);
}

/* Complete the flushes of lines: they land, and leave the cache or, where they `linger`, stay for later loads to hit.
 * Returns whether any landed. */
bool image_complete(mover by, pool_lines lines, bool lingers);

/* Drop those of these lines that linger: at a full fence, or because a load is about to `hit` them. */
void image_drop_lingering(mover by, pool_lines lines, bool hit);

/* Prepare lines that were mapped: code that looks at them without an announcement sees what the pool holds now. */
void image_mapped(int pool, int64_t first, int64_t last);

/* Land a non-temporal store, number `store` of the trace. */
void image_land_nt(mover by, int pool, int64_t offset, const uint8_t *bytes, int64_t nbytes, uint64_t store);

/* Make a move of nature, of one line, where it is possible. */
bool image_nature(mover by, enum action action, int pool, int64_t line);
void image_nature_run(mover by, enum action action, pool_lines lines); /* of each of these lines */

/* An invariant reads lines in the pool: what a crashed host has left of them is decided. */
void image_decide(mover by, pool_lines lines);

/* Crash a host: its cache vanishes, and random numbers decide which posted write-backs arrive; in a search, crash.h. */
void image_crash(int host, uint64_t *random);

/* As memcpy and memcmp do, in place for a word and for a line: a call, which may be the program's as well, takes longer. */
static inline void put_bytes(uint8_t *to, const uint8_t *from, size_t nbytes) {
    if (nbytes == sizeof(uint64_t)) memcpy(to, from, sizeof(uint64_t));
    else if (nbytes == LINE_BYTES) memcpy(to, from, LINE_BYTES);
    else memcpy(to, from, nbytes);
}

static inline bool are_same(const uint8_t *one, const uint8_t *other, size_t nbytes) {
    if (nbytes == sizeof(uint64_t)) return memcmp(one, other, sizeof(uint64_t)) == 0;
    return memcmp(one, other, nbytes) == 0;
}

/* Return, as bits, which bytes of a line were stored to without an announcement. 0 on hosts with pages. */
uint64_t image_differing(int host, int pool, int64_t line);

/* Whether a line's bytes are those that were last reported. In place: it is asked of each line of a flush. */
static inline bool image_is_told(const host_image *image, int64_t line) {
    uint64_t now[LINE_BYTES / 8], then[LINE_BYTES / 8], differ = 0;
    memcpy(now, image->cache.data + line * LINE_BYTES, sizeof now);
    memcpy(then, image->twin + line * LINE_BYTES, sizeof then);
    for (int k = 0; k < LINE_BYTES / 8; k++) differ |= now[k] ^ then[k];
    return differ == 0;
}

static inline uint64_t image_unannounced(int host, int pool, int64_t line) {
    return in_pages(host) || image_is_told(image_of(host, pool), line) ? 0 : image_differing(host, pool, line);
}

/* Note that the bytes of a range were reported as they are. */
void image_told(int host, int pool, int64_t offset, int64_t nbytes);

#endif
