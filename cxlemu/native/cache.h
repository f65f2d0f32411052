/* A host's cache of one card, step for step CardCache of memory/cache.py. Windows are line numbers. Bytes are moved
 * before the state that vouches for them, so that a process killed in between leaves a cache that others can go on
 * using. */
#ifndef CXLEMU_CACHE_H
#define CXLEMU_CACHE_H

#include "shadow.h"

void cache_store(card_cache *c, int64_t offset, strided from, int64_t nbytes);

/* A store and a flush: whole lines go to where write-backs wait, and nowhere else. The flush is still to come, for the
 * lines at either end. */
void cache_store_through(card_cache *c, int64_t offset, strided from, int64_t nbytes);

/* DONE, or why a load that fetches these lines fails: then *line is the first that is poisoned. */
enum status cache_check_load(const card_cache *c, int64_t first, int64_t last, int64_t *line);

void cache_load(card_cache *c, int64_t offset, strided into, int64_t nbytes);

/* A load of these lines without the copy, for a program that maps the cached bytes themselves; dirty: a store to lines
 * that are present. */
void cache_touch(card_cache *c, int64_t first, int64_t last, bool dirty);

void cache_flush(card_cache *c, int64_t first, int64_t last, bool keep);
void cache_complete(card_cache *c, int64_t first, int64_t last);
void cache_invalidate(card_cache *c, int64_t first, int64_t last);
void cache_push_doorbell(card_cache *c, int64_t line);
void cache_fetch_doorbell(card_cache *c, int64_t line);
void cache_land_nt(card_cache *c, int64_t offset, const uint8_t *bytes, int64_t nbytes);

/* One move of nature; returns how many lines it moved. */
int64_t cache_move(card_cache *c, const adversary_move *move);

/* Bytes from..from + nbytes of strided ones; and the reverse. */
void cache_take_strided(uint8_t *into, strided from, int64_t at, int64_t nbytes);
void cache_give_strided(strided into, int64_t at, const uint8_t *from, int64_t nbytes);

#endif
