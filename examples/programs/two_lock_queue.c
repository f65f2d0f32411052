/* The queue of Michael and Scott (1996) with two locks: hosts that append and hosts that take do not wait for each other. Nodes are
 * linked by their numbers, and no node is used again.   two_lock_queue HOST HOSTS OPERATIONS, where e enqueues and d dequeues
 * -DBUG: a host looks up the last node before it has the lock, so in some interleavings a message is lost.
 *
 *     cxlemu cc -O2 -g two_lock_queue.c -o two_lock_queue
 *     cxlemu exec --pool /dev/shm/two_lock --every -- ./two_lock_queue 0 2 ed : ./two_lock_queue 1 2 ed */
#include "locks.h"

enum { EACH = 4 };

typedef struct {
    word value, next; /* 0: there is none yet */
} node;

typedef struct {
    peterson takers, appenders;
    word head, tail; /* at first node 0, which carries no message */
    node nodes[1 + HOSTS_MOST * EACH];
} queue;

static void enqueue(queue *q, int me, int hosts, uint64_t at, uint64_t value) {
    cxl_op_begin(CXL_OP_ENQUEUE, 0, value);
    set(&q->nodes[at].value, value);
#ifdef BUG
    const uint64_t last = get(&q->tail);
#endif
    peterson_lock(&q->appenders, me, hosts);
#ifndef BUG
    const uint64_t last = get(&q->tail);
#endif
    set(&q->nodes[last].next, at);
    set(&q->tail, at);
    peterson_unlock(&q->appenders, me, hosts);
    cxl_op_end(value);
}

static void dequeue(queue *q, int me, int hosts) {
    cxl_op_begin(CXL_OP_DEQUEUE, 0, 0);
    peterson_lock(&q->takers, me, hosts);
    const uint64_t next = get(&q->nodes[get(&q->head)].next);
    const uint64_t value = next ? get(&q->nodes[next].value) : CXL_NONE;
    if (next) set(&q->head, next);
    peterson_unlock(&q->takers, me, hosts);
    cxl_op_end(value);
}

int main(int count, char **words) {
    queue *q = map_pool("/dev/shm/two_lock", sizeof *q);
    if (count != 4 || strlen(words[3]) > EACH) fail("two_lock_queue HOST HOSTS OPERATIONS");
    const int me = atoi(words[1]), hosts = atoi(words[2]);
    if (me < 0 || me >= hosts || hosts > HOSTS_MOST) fail("HOST is below HOSTS, which is at most 4");
    cxl_linearizable(CXL_QUEUE);
    for (uint64_t k = 0; words[3][k]; k++) {
        const uint64_t at = 1 + (uint64_t)me * EACH + k;
        if (words[3][k] == 'e') enqueue(q, me, hosts, at, at * 10);
        else dequeue(q, me, hosts);
    }
    return 0;
}
