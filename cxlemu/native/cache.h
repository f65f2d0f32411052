/* A host's cache of one card. It does what CardCache of memory/cache.py does, step for step. Windows are line numbers. Bytes
 * move before the state that vouches for them, so that a process that is killed in between leaves a cache that others can go
 * on using. */
#ifndef CXLEMU_CACHE_H
#define CXLEMU_CACHE_H

#include "shadow.h"

/* Bits of a line's state, as in memory/cache.py. A FLUSHED line leaves the cache at the latest at that rank's fence. A line that is FLUSHED without being PRESENT is not here;
 * when it is fetched from its pending write-back, which is all that is left of it, it is FLUSHED again. */
enum { PRESENT = 1, DIRTY = 2, FLUSHED = 4 };

void cache_store(card_cache *c, int64_t offset, strided from, int64_t nbytes);

/* Store bytes that will be flushed next: whole lines go only to where write-backs wait. fenced: a fence follows the flush, and
 * whole lines go to the pool. The lines at either end still need the flush and the fence. */
void cache_store_through(card_cache *c, int64_t offset, strided from, int64_t nbytes, bool fenced);

/* Return DONE, or why a load that fetches these lines fails: then *line is the first poisoned one. */
enum status cache_check_load(const card_cache *c, int64_t first, int64_t last, int64_t *line);

void cache_load(card_cache *c, int64_t offset, strided into, int64_t nbytes);

/* Load lines without copying them, for a program that maps the cached bytes themselves; with `dirty`, store to lines that are
 * present. */
void cache_touch(card_cache *c, int64_t first, int64_t last, bool dirty);

void cache_flush(card_cache *c, int64_t first, int64_t last, bool keep);
void cache_complete(card_cache *c, int64_t first, int64_t last);
void cache_land(card_cache *c, int64_t first, int64_t last); /* what is pending, in any state */
void cache_invalidate(card_cache *c, int64_t first, int64_t last);
void cache_push_doorbell(card_cache *c, int64_t line);
void cache_fetch_doorbell(card_cache *c, int64_t line);
void cache_land_nt(card_cache *c, int64_t offset, const uint8_t *bytes, int64_t nbytes);

/* Make a move of nature, of one line, where it is possible; and of many, which returns how many lines it moved. */
bool cache_move_line(card_cache *c, enum action action, int64_t line);
int64_t cache_move(card_cache *c, const adversary_move *move);

/* Copy bytes [at, at + nbytes) of strided ones to `into`; and from `from` to strided ones. */
void cache_take_strided(uint8_t *into, strided from, int64_t at, int64_t nbytes);
void cache_give_strided(strided into, int64_t at, const uint8_t *from, int64_t nbytes);

#endif
