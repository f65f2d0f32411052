/* A ring queue between two hosts that share a pool without coherence: a producer, a consumer, entries with a sequence
 * number and a checksum. `create` makes the header. -DMISTAKE=n leaves out, or misplaces, one step; -DLINE_BY_LINE flushes each
 * line by a call of its own. */
#include <cxl.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#ifndef MISTAKE
#define MISTAKE 0
#endif
enum mistake {
    NONE,
    ENTRY_NOT_FLUSHED,
    ENTRY_NOT_FENCED,
    PRODUCER_INDEX_NOT_FLUSHED,
    CONSUMER_INDEX_NOT_FLUSHED,
    PRODUCER_INDEX_NOT_INVALIDATED,
    CONSUMER_INDEX_NOT_INVALIDATED,
    HEADER_NOT_FLUSHED,
    MAGIC_NOT_FLUSHED,
    ENTRY_INVALIDATED_EARLY,
    INVALIDATED_BY_SFENCE,
    ALWAYS,
};

#ifndef BODY
#define BODY 88
#define MESSAGES 24
#endif
enum { SLOTS = 4 };
#define MAGIC UINT64_C(0x51554555453031)

typedef struct {
    uint64_t sequence;
    uint8_t body[BODY];
    uint32_t checksum, unused;
} entry; /* crosses lines */

typedef struct {
    uint64_t slots, body_bytes;
    uint8_t rest[48];
    uint64_t magic; /* in the next line: set last */
    uint8_t more[56];
    volatile uint64_t produced; /* the producer's line */
    uint8_t of_producer[56];
    volatile uint64_t consumed; /* the consumer's line */
    uint8_t of_consumer[56];
    entry entries[SLOTS];
} queue;

static void publish(const volatile void *where, size_t nbytes, enum mistake not_flushed) {
    const void *at = (const void *)(uintptr_t)where;
#ifdef LINE_BY_LINE
    for (uintptr_t line = (uintptr_t)at / 64 * 64; MISTAKE != not_flushed && line < (uintptr_t)at + nbytes; line += 64)
        cxl_flush((const void *)line, 1);
#else
    if (MISTAKE != not_flushed) cxl_flush(at, nbytes);
#endif
    if (!(MISTAKE == ENTRY_NOT_FENCED && not_flushed == ENTRY_NOT_FLUSHED)) cxl_fence();
}

static void refresh(const volatile void *where, size_t nbytes, enum mistake left_out) {
    const void *at = (const void *)(uintptr_t)where;
    if (MISTAKE == left_out) return;
    if (MISTAKE == INVALIDATED_BY_SFENCE) {
        cxl_flush(at, nbytes);
        cxl_fence();
        return;
    }
    cxl_invalidate(at, nbytes);
}

static uint32_t checksum(const entry *e) {
    uint32_t sum = (uint32_t)e->sequence * 2654435761u;
    for (int k = 0; k < BODY; k++) sum = (sum ^ e->body[k]) * 16777619u;
    return sum;
}

static void create(queue *q) {
    q->slots = SLOTS, q->body_bytes = BODY;
    publish(&q->slots, 64, HEADER_NOT_FLUSHED);
    q->magic = MAGIC;
    publish(&q->magic, 64, MAGIC_NOT_FLUSHED);
}

static void produce(queue *q) {
    for (uint64_t k = 0; k < MESSAGES; k++) {
        while (k - q->consumed >= SLOTS) refresh(&q->consumed, 8, CONSUMER_INDEX_NOT_INVALIDATED);
        entry *e = &q->entries[k % SLOTS];
        entry made = {.sequence = k};
        for (int i = 0; i < BODY; i++) made.body[i] = (uint8_t)(k * 31 + (uint64_t)i);
        made.checksum = checksum(&made);
        memcpy(e, &made, sizeof made);
        publish(e, sizeof *e, ENTRY_NOT_FLUSHED);
        q->produced = k + 1;
        publish(&q->produced, 8, PRODUCER_INDEX_NOT_FLUSHED);
    }
}

static int consume(queue *q) {
    for (uint64_t k = 0; k < MESSAGES; k++) {
        const entry *e = &q->entries[k % SLOTS];
        if (MISTAKE == ENTRY_INVALIDATED_EARLY) cxl_invalidate(e, sizeof *e);
        while (q->produced <= k) refresh(&q->produced, 8, PRODUCER_INDEX_NOT_INVALIDATED);
        if (MISTAKE != ENTRY_INVALIDATED_EARLY) refresh(e, sizeof *e, ALWAYS);
        entry got;
        memcpy(&got, e, sizeof got);
        if (got.sequence != k || got.checksum != checksum(&got)) {
            fprintf(stderr, "message %llu: sequence %llu, checksum %s\n", (unsigned long long)k,
                    (unsigned long long)got.sequence, got.checksum == checksum(&got) ? "right" : "wrong");
            return 1;
        }
        q->consumed = k + 1;
        publish(&q->consumed, 8, CONSUMER_INDEX_NOT_FLUSHED);
    }
    return 0;
}

int main(int count, char **words) {
    if (count != 3) return 2;
    const int file = open(words[1], O_RDWR | O_CREAT, 0600);
    if (file < 0 || ftruncate(file, sizeof(queue)) != 0) return 2;
    queue *q = mmap(NULL, sizeof *q, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (q == MAP_FAILED) return 2;
    if (words[2][0] == 'n') { /* new */
        create(q);
        return 0;
    }
    cxl_invalidate(q, 128);
    if (q->magic != MAGIC || q->slots != SLOTS || q->body_bytes != BODY) {
        fprintf(stderr, "no queue here\n");
        return 1;
    }
    if (words[2][0] == 'c') return consume(q);
    produce(q);
    return 0;
}
