/* A rank's view of a pool that its host caches without coherence. memory/shadow.py on memory/cache.py are the definition, on the
 * same storage. Every function holds the host's lock while it runs. Ranges were checked before. */
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
    uint64_t *damage; /* the pool's, which all hosts share */
    int32_t host, card;
} card_cache;

/* Local bytes: block k of block_bytes begins at at + k * stride. */
typedef struct {
    uint8_t *at;
    int64_t block_bytes, stride;
} strided;

/* A non-temporal store that is posted. */
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
    double lock_s; /* how long to wait for the lock, in seconds */
    bool disturbed;
    adversary nature; /* if disturbed */
    window *flushed; /* lines flushed since the last fence */
    int64_t flushed_count, flushed_room;
    posted_store *stores; /* in program order */
    int64_t store_count, store_room;
    int64_t moved[ACTIONS]; /* how many lines the adversary has moved */
    damaged_place broken; /* where the last failed load failed */
};

/* All return DONE, LOCK_TIMEOUT (the lock could not be had), OUT_OF_MEMORY (there is no memory for what is posted) or, where
 * they load, why the load failed: then nothing was loaded or stored. */

/* What this rank does next to the bytes that it writes. */
enum follows { OTHER_NEXT, FLUSH_NEXT, FLUSH_AND_FENCE_NEXT };

enum status shadow_write(shadow *s, place at, strided from, int64_t nbytes, enum follows next);
enum status shadow_write_nt(shadow *s, place at, strided from, int64_t nbytes);
enum status shadow_read(shadow *s, place at, strided into, int64_t nbytes);
enum status shadow_flush(shadow *s, place at, int64_t nbytes, bool keep);
enum status shadow_fence(shadow *s);
enum status shadow_invalidate(shadow *s, place at, int64_t nbytes);
enum status shadow_signal(shadow *s, place line, uint64_t word, const uint8_t *payload, int64_t nbytes);
enum status shadow_poll(shadow *s, place line, uint8_t into[LINE_BYTES]);

/* Make one move of nature, and count its lines in `moved`; the caller holds the host's lock, or there is no other thread. Return
 * false when there is no memory. */
bool shadow_suffer(shadow *s, const adversary_move *move);

/* Free posted stores without landing them. */
void shadow_discard(shadow *s);

#endif
