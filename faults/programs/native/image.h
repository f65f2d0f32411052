/* A host's image of the pool, moved line by line, and every move told to who watches. By whoever has the turn. */
#ifndef CXLEMU_IMAGE_H
#define CXLEMU_IMAGE_H

#include "area.h"

typedef struct {
    int pool;
    int64_t first, last;
} pool_lines;

/* Who moves lines, for the watcher. */
typedef struct {
    int host;
    uint16_t thread;
    uint8_t cause;
} mover;

/* The lines are in the cache; `dirty` when stores to them come next. DONE, or why a load fails, and at which line. */
enum status image_touch(mover by, pool_lines lines, bool dirty, int64_t *broken);

/* Post what is dirty; without keep, what is present goes at the fence. */
void image_flush(mover by, int pool, int64_t line, bool keep);

/* On a host with a process that is not recompiled: what was stored to the line since the last look is told. */
void image_find_stores(mover by, int pool, int64_t line);

/* What was flushed has landed; it is gone, or (`lingers`) later loads may still hit it. True when something landed. */
bool image_complete(mover by, int pool, int64_t line, bool lingers);

/* A full fence came, or a load is about to hit a line that lingers: it is gone. */
void image_drop_lingering(mover by, int pool, int64_t line, bool hit);

/* These lines were mapped: whoever looks at them unannounced sees what the pool holds now. */
void image_mapped(int pool, int64_t first, int64_t last);

/* A non-temporal store arrives. */
void image_land_nt(mover by, int pool, int64_t offset, const uint8_t *bytes, int64_t nbytes, uint64_t store);

/* A move of nature; returns how many lines it moved. */
int64_t image_nature(mover by, const adversary_move *move);

/* Everything posted arrives, and what was flushed goes: nature owes that much. Returns how many lines moved. */
int64_t image_pay(void);

/* The host dies: its cache vanishes, each write-back arrives or is lost as the random numbers have it. */
void image_crash(int host, uint64_t *random);

/* Which bytes of a line differ from what was told: nobody announced a store to them. 0 on hosts with pages. */
uint64_t image_unannounced(int host, int pool, int64_t line);

/* The bytes of a range are as they were told. */
void image_told(int host, int pool, int64_t offset, int64_t nbytes);

#endif
