/* A counter, a queue, a map and a register of two hosts, which log their operations. Each word has one writer, and Peterson's
 * lock guards what reads both hosts' words.   -DBUG: it does not, and the register tells before it is flushed: each flush,
 * fence and invalidate is there, but two hosts get the same number, message or value, and a crash loses a value that was told.
 *
 *     cxlemu cc -O2 histories.c -o histories
 *     cxlemu exec --pool /dev/shm/objects --every -- ./histories fill queue :: ./histories 0 queue : ./histories 1 queue */
#include "words.h"

enum { SLOTS = 4, MINE = 7 };

typedef struct {
    word wants[2],
        turn[2]; /* of the lock: the turn is the other host's where both words are equal and host is 0, or differ */
    word count[2]; /* what each host has added */
    word slot[SLOTS], taken[2]; /* the queue, and how many each host has taken */
    word value, removed[2]; /* the map's only key, and whether a host has removed it */
    word written;
} objects;

/* Peterson's lock, whose turn is two words with one writer each (Kessels). */
static void lock(objects *o, int me) {
#ifndef BUG
    set(&o->wants[me], 1);
    const uint64_t mine = get(&o->turn[!me]) ^ (uint64_t)me;
    set(&o->turn[me], mine);
    while (get(&o->wants[!me]) && (get(&o->turn[!me]) ^ (uint64_t)me) == mine) {}
#else
    (void)o, (void)me;
#endif
}

static void unlock(objects *o, int me) {
#ifndef BUG
    set(&o->wants[me], 0);
#else
    (void)o, (void)me;
#endif
}

static uint64_t add(objects *o, int me, uint64_t value) {
    cxl_op_begin(CXL_OP_ADD, 0, value);
    lock(o, me);
    const uint64_t mine = o->count[me].it, before = mine + get(&o->count[!me]);
    set(&o->count[me], mine + value);
    unlock(o, me);
    cxl_op_end(before);
    return before;
}

static uint64_t dequeue(objects *o, int me) {
    cxl_op_begin(CXL_OP_DEQUEUE, 0, 0);
    lock(o, me);
    const uint64_t mine = o->taken[me].it, at = mine + get(&o->taken[!me]);
    const uint64_t value = at < SLOTS ? get(&o->slot[at]) : 0;
    if (value) set(&o->taken[me], mine + 1);
    unlock(o, me);
    cxl_op_end(value ? value : CXL_NONE);
    return value;
}

static uint64_t take_out(objects *o, int me) {
    cxl_op_begin(CXL_OP_REMOVE, MINE, 0);
    lock(o, me);
    const uint64_t value = o->removed[me].it || get(&o->removed[!me]) ? 0 : get(&o->value);
    set(&o->removed[me], 1);
    unlock(o, me);
    cxl_op_end(value ? value : CXL_NONE);
    return value;
}

static void put(word *w, int operation, uint64_t key, uint64_t value) {
    cxl_op_begin(operation, key, value);
    w->it = value;
#ifndef BUG
    publish(w, sizeof *w);
#endif
    cxl_op_end(value);
    publish(w, sizeof *w);
}

static void fill(objects *o, const char *what) {
    if (strcmp(what, "queue") == 0)
        for (uint64_t k = 0; k < 2; k++) put(&o->slot[k], CXL_OP_ENQUEUE, 0, k + 1);
    if (strcmp(what, "map") == 0) put(&o->value, CXL_OP_PUT, MINE, 5);
    if (strcmp(what, "register") == 0) put(&o->written, CXL_OP_WRITE, 0, 3);
}

static void look(objects *o) {
    cxl_op_begin(CXL_OP_READ, 0, 0);
    cxl_op_end(get(&o->written));
}

int main(int count, char **words) {
    objects *o = map_pool("/dev/shm/objects", sizeof *o);
    if (count != 3) fail("histories fill|0|1 counter|queue|map|register");
    const int me = words[1][0] == '1';
    cxl_linearizable(words[2][0] == 'q' ? CXL_QUEUE : words[2][0] == 'm' ? CXL_MAP : CXL_REGISTER);
    if (words[1][0] == 'f') fill(o, words[2]);
    else if (words[2][0] == 'c') add(o, me, 1);
    else if (words[2][0] == 'q') dequeue(o, me);
    else if (words[2][0] == 'm') take_out(o, me);
    else look(o);
    return 0;
}
