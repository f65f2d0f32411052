/* A queue from host 0 to host 1, at a path or in /dev/shm/queue, where zeros are.   -DBUG: no entry is flushed.
 *
 *     cxlemu cc -O2 queue.c -o queue
 *     cxlemu exec --pool /dev/shm/queue -- ./queue send : ./queue receive */
#include "pool.h"

#ifndef MESSAGES
#define MESSAGES 32
#endif
enum { SLOTS = 4, LINE = 64 };

typedef struct {
    volatile uint64_t sent; /* the sender's line */
    char rest[LINE - 8];
    volatile uint64_t received; /* the receiver's line */
    char more[LINE - 8];
    struct {
        char text[LINE];
    } slots[SLOTS];
} queue;

static void send(queue *q) {
    for (uint64_t k = 0; k < MESSAGES; k++) {
        while (k - q->received == SLOTS) refresh(&q->received, LINE);
        snprintf(q->slots[k % SLOTS].text, LINE, "message %llu", (unsigned long long)k);
#ifndef BUG
        publish(&q->slots[k % SLOTS], LINE);
#endif
        q->sent = k + 1;
        publish(&q->sent, LINE);
    }
}

static void receive(queue *q) {
    for (uint64_t k = 0; k < MESSAGES; k++) {
        while (q->sent <= k) refresh(&q->sent, LINE);
        refresh(&q->slots[k % SLOTS], LINE);
        char text[LINE];
        memcpy(text, q->slots[k % SLOTS].text, LINE); /* strtoull itself would load it unseen */
        if (strtoull(text + 8, NULL, 10) != k) fail(text);
        q->received = k + 1;
        publish(&q->received, LINE);
    }
}

int main(int count, char **words) {
    queue *q = map_pool(count > 2 ? words[2] : "/dev/shm/queue", sizeof *q);
    (count > 1 && strcmp(words[1], "send") == 0 ? send : receive)(q);
    return 0;
}
