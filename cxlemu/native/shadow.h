/* What one rank sees of a pool that its host caches without coherence: memory/shadow.py on memory/cache.py, which are the
 * definition, on the same storage. Every function takes the host's lock for as long as it runs; ranges were checked. */
#ifndef CXLEMU_SHADOW_H
#define CXLEMU_SHADOW_H

#include "adversary.h"
#include "core.h"
#include "damage.h"
#include "hostlock.h"
#include "address.h"

/* One host's cached lines of one card. */
typedef struct {
    uint8_t *pool, *data, *posted, *state, *pending;
    uint64_t *damage; /* of all hosts' pool */
    int32_t host, card;
} card_cache;

/* Local bytes: block k of block_bytes begins at at + k * stride. */
typedef struct {
    uint8_t *at;
    int64_t block_bytes, stride;
} strided;

/* A non-temporal store on its way. */
typedef struct {
    place at;
    int64_t nbytes;
    uint8_t *bytes, *owned;
} posted_store;

struct shadow {
    card_cache cards[MAX_CARDS];
    int32_t card_count;
    int64_t card_bytes;
    host_lock *lock;
    double lock_s; /* how long to wait for it */
    bool disturbed;
    adversary nature; /* if disturbed */
    window *flushed; /* since the last fence */
    int64_t flushed_count, flushed_room;
    posted_store *stores; /* in program order */
    int64_t store_count, store_room;
    int64_t moved[ACTIONS]; /* lines, by the adversary */
    damaged_place broken; /* where the last load failed that did */
};

/* All return DONE, LOCK_TIMEOUT (the lock could not be had), OUT_OF_MEMORY (no memory for what is posted) or, where they load, why that
 * failed: then nothing was loaded or stored. */

/* through: what is stored is flushed next, by this rank. */
enum status shadow_write(shadow *s, place at, strided from, int64_t nbytes, bool through);
enum status shadow_write_nt(shadow *s, place at, strided from, int64_t nbytes);
enum status shadow_read(shadow *s, place at, strided into, int64_t nbytes);
enum status shadow_flush(shadow *s, place at, int64_t nbytes, bool keep);
enum status shadow_fence(shadow *s);
enum status shadow_invalidate(shadow *s, place at, int64_t nbytes);
enum status shadow_signal(shadow *s, place line, uint64_t word, const uint8_t *payload, int64_t nbytes);
enum status shadow_poll(shadow *s, place line, uint8_t into[LINE_BYTES]);

/* Free what is posted. */
void shadow_discard(shadow *s);

#endif
