/* Regions that lie in a rank's own process, among ranks of one machine. The owner's instructions find them where they are, with
 * no copy; peers read them there, with one copy by the kernel. Where its arrays lie each rank tells by its doorbells: a SIGNAL
 * carries the addresses of its input and output, and a WAIT for it learns them. */
#ifndef CXLEMU_PEER_MEMORY_H
#define CXLEMU_PEER_MEMORY_H

#include "core.h"
#include "told.h"

#include <string.h>

enum { STAGES = 3 };

struct peer_memory {
    int32_t ranks, own;
    const berth *berths; /* of each region */
    const int32_t *pids; /* of each rank */
    uint64_t (*at)[TOLD_BUFFERS]; /* of each rank: where its input and its output lie in its process */
    uint8_t *stage; /* for operands of a REDUCE that lie in peers' processes */
    int next_stage, error; /* error: the errno of a read that failed, else 0 */
    int32_t unreadable; /* whose memory could not be read */
};

/* Return where a region lies that is in a process; NULL where it lies in the pool. */
static inline const berth *berth_of(const program *p, int32_t number) {
    return p->peers && p->peers->berths[number].owner != IN_POOL ? &p->peers->berths[number] : NULL;
}

static inline bool is_peers(const program *p, const operand *o) {
    const berth *its = o->kind == REGION ? berth_of(p, o->id) : NULL;
    return its && its->owner != p->peers->own;
}

static inline void peer_tell(const program *p, uint8_t *payload) {
    memcpy(payload, p->buffers, TOLD_BUFFERS * sizeof p->buffers[0]);
}

static inline void peer_learn(const program *p, int32_t owner, const uint8_t *payload) {
    memcpy(p->peers->at[owner], payload, sizeof p->peers->at[owner]);
}

/* Read bytes of a region in a peer's process. A failure is noted, and nothing more is read. */
void peer_read(const program *p, const operand *o, int64_t at, uint8_t *into, int64_t nbytes);

/* Return the address of byte `at` of an operand in a process: in this rank's own array, or in a stage to which it is brought.
 * *run is cut to how many bytes lie there. */
uint8_t *peer_piece(const program *p, const operand *o, int64_t at, int64_t *run);

/* Make a table of the ranks' processes, with copies of its arguments. Return NULL without memory. */
struct peer_memory *peer_memory_new(int32_t ranks, int32_t own, const int32_t *pids, const berth *berths,
                                    int64_t regions);
void peer_memory_free(struct peer_memory *its);

/* Read nbytes at an address of a process. Return 0 or an errno. */
int process_read(int32_t pid, uint64_t from, uint8_t *into, int64_t nbytes);

#endif
