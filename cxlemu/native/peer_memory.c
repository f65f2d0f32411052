#define _GNU_SOURCE
#include "peer_memory.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/uio.h>

enum { STAGE_BYTES = 1 << 17 }; /* three of them stay in the second-level cache */

int process_read(int32_t pid, uint64_t from, uint8_t *into, int64_t nbytes) {
    for (ssize_t got; nbytes > 0; into += got, from += (uint64_t)got, nbytes -= got) {
        struct iovec to = {into, (size_t)nbytes}, there = {(void *)(uintptr_t)from, (size_t)nbytes};
        got = process_vm_readv(pid, &to, 1, &there, 1, 0);
        if (got <= 0) return got < 0 ? errno : EFAULT;
    }
    return 0;
}

void peer_read(const program *p, const operand *o, int64_t at, uint8_t *into, int64_t nbytes) {
    struct peer_memory *its = p->peers;
    const berth *lies = &its->berths[o->id];
    const uint64_t from = its->at[lies->owner][lies->buffer] + (uint64_t)(lies->offset + o->offset + at);
    if (its->error) return;
    its->error = process_read(its->pids[lies->owner], from, into, nbytes);
    its->unreadable = (int32_t)lies->owner;
}

uint8_t *peer_piece(const program *p, const operand *o, int64_t at, int64_t *run) {
    struct peer_memory *its = p->peers;
    const berth *lies = &its->berths[o->id];
    if (lies->owner == its->own) return p->buffers[lies->buffer] + lies->offset + o->offset + at;
    if (*run > STAGE_BYTES) *run = STAGE_BYTES;
    uint8_t *stage = its->stage + (int64_t)its->next_stage * STAGE_BYTES;
    its->next_stage = (its->next_stage + 1) % STAGES;
    peer_read(p, o, at, stage, *run);
    return stage;
}

static void *copy_of(const void *from, size_t nbytes) {
    void *made = malloc(nbytes + !nbytes);
    return made ? memcpy(made, from, nbytes) : NULL;
}

struct peer_memory *peer_memory_new(int32_t ranks, int32_t own, const int32_t *pids, const berth *berths,
                                    int64_t regions) {
    struct peer_memory *its = calloc(1, sizeof *its);
    if (!its) return NULL;
    its->ranks = ranks, its->own = own;
    its->pids = copy_of(pids, (size_t)ranks * sizeof *pids);
    its->berths = copy_of(berths, (size_t)regions * sizeof *berths);
    its->at = calloc((size_t)ranks, sizeof *its->at);
    its->stage = malloc((size_t)STAGES * STAGE_BYTES);
    if (its->pids && its->berths && its->at && its->stage) return its;
    peer_memory_free(its);
    return NULL;
}

void peer_memory_free(struct peer_memory *its) {
    if (!its) return;
    free((void *)its->pids), free((void *)its->berths), free(its->at), free(its->stage);
    free(its);
}
