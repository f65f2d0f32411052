/* The protocols of examples/protocols, as programs.   shipped PROTOCOL HOST|check   -DBUG: with the mistake that is `broken` there */
#include "locks.h"

#ifdef BUG
enum { RIGHT = 0 };
#else
enum { RIGHT = 1 };
#endif
enum { WORDS = 16 };

typedef struct {
    word words[WORDS];
    peterson lock;
    struct {
        _Alignas(CXL_LINE) volatile uint64_t it[2];
    } pair;
} pool;

static pool *p;
static word *w; /* its words */

static void post(word *at, uint64_t value) { /* it arrives at any time before the next fence */
    at->it = value;
    cxl_flush(at, sizeof *at);
}

static void await(word *at, uint64_t value) {
    while (get(at) < value) {}
}

static void until_free(word *at) {
    while (get(at)) {}
}

/* Nobody else is in here. */
static void inside(word *taken) {
    cxl_assert(!get(taken));
    set(taken, 1);
    set(taken, 0);
}

static void early_free(int host) {
    word *filled = w, *freed = w + 1, *message = w + 2;
    for (uint64_t k = 0; k < 2; k++) {
        if (host == 0) {
            await(freed, k);
            set(message, 11 * (k + 1));
            set(filled, k + 1);
        } else {
            await(filled, k + 1);
            refresh(message, CXL_LINE);
            if (!RIGHT) set(freed, k + 1);
            cxl_assert(message->it == 11 * (k + 1));
            if (RIGHT) set(freed, k + 1);
        }
    }
}

static void early_ready(int host) {
    word *ready = w, *entries = w + 1;
    if (host == 0) {
        for (int k = 0; k < 2; k++) post(entries + k, 99);
        if (RIGHT) cxl_fence();
        set(ready, 1);
    } else {
        await(ready, 1);
        for (int k = 0; k < 2; k++) cxl_assert(get(entries + k) == 99);
    }
}

static void fast_lock(int host, word *x, word *y, word *tries) {
    const uint64_t me = (uint64_t)host + 1;
    for (;;) {
        set(&tries[host], 1);
        set(x, me);
        if (get(y)) {
            set(&tries[host], 0);
            until_free(y);
            continue;
        }
        set(y, me);
        if (get(x) == me) return;
        set(&tries[host], 0);
        for (int k = 0; RIGHT && k < 2; k++) until_free(&tries[k]);
        if (get(y) == me) return;
        until_free(y);
    }
}

static void fast_mutex(int host) {
    word *taken = w, *x = w + 1, *y = w + 2, *tries = w + 3;
    fast_lock(host, x, y, tries);
    inside(taken);
    set(y, 0);
    set(&tries[host], 0);
}

static void granted_lock(int host) {
    word *count = w, *wants = w + 1, *granted = w + 2;
    if (host == 0) {
        await(wants, 1);
        set(granted, 1);
        await(wants, 2);
        cxl_assert(get(count) == 1);
    } else {
        set(wants, 1);
        await(granted, 1);
        post(count, get(count) + 1);
        if (RIGHT) cxl_fence();
        set(wants, 2);
    }
}

enum { NOTHING, CLAIMED, HELD };

static void use_room(int host, word *room) {
    set(room, (uint64_t)host);
    cxl_assert(get(room) == (uint64_t)host);
}

static int claim(int host, word *holds) {
    set(&holds[host], CLAIMED);
    for (int look = 0; look < 1 + RIGHT; look++)
        for (int other = 2; other >= 0; other--)
            if (other != host && get(&holds[other]) != NOTHING) {
                set(&holds[host], NOTHING);
                return 0;
            }
    return 1;
}

static int join(word *holds) {
    if (get(&holds[0]) != HELD) return 0;
    set(&holds[1], HELD);
    if (get(&holds[0]) == HELD) return 1;
    set(&holds[1], NOTHING);
    return 0;
}

static void group_room(int host) {
    word *room = w, *holds = w + 1;
    if (host == 1 ? join(holds) : claim(host, holds)) {
        if (host) use_room(host, room);
        else set(&holds[0], HELD), set(&holds[0], NOTHING);
    }
}

static void once(int host) {
    word *ready = w, *table = w + 1;
    if (!get(ready)) {
        peterson_lock(&p->lock, host, 2);
        if (!get(ready)) set(table, 42), set(ready, 1);
        peterson_unlock(&p->lock, host, 2);
    }
    if (RIGHT) refresh(table, CXL_LINE);
    cxl_assert(table->it == 42);
}

static void reread_lock(int host) {
    word *taken = w, *wants = w + 1, *owner = w + 3;
    const uint64_t me = (uint64_t)host + 1;
    if (!RIGHT) {
        for (;;) {
            until_free(owner);
            set(owner, me);
            if (get(owner) == me) break;
        }
        inside(taken);
        set(owner, 0);
        return;
    }
    for (;;) {
        set(&wants[host], 1);
        if (host == 0) until_free(&wants[1]);
        if (host == 0 || !get(&wants[0])) break;
        set(&wants[host], 0);
        until_free(&wants[0]); /* the later host steps back */
    }
    inside(taken);
    set(&wants[host], 0);
}

static void ring_queue(int host) {
    enum { SALT = 7 };
    word *head = w, *tail = w + 1;
    volatile uint64_t *item = p->pair.it, *checksum = item + 1;
    for (uint64_t k = 0, expected = 11; k < 2; k++, expected += 11) {
        if (host == 0) {
            await(tail, k);
            *item = expected, *checksum = expected + SALT;
            publish(item, CXL_LINE);
            set(head, k + 1);
            continue;
        }
        if (RIGHT) {
            await(head, k + 1);
            refresh(item, CXL_LINE);
        }
        while (*checksum != *item + SALT) refresh(item, CXL_LINE);
        cxl_assert(*item == expected);
        set(tail, k + 1);
    }
}

static void shared_line(int host) {
    volatile uint64_t *here = RIGHT ? &w[host].it : &p->pair.it[host];
    *here = 1;
    publish(here, CXL_LINE);
}

static void spsc_ring(int host) {
    enum { SLOTS = 2, ITEMS = 3 };
    word *filled = w, *freed = w + 1, *slots = w + 2;
    for (uint64_t k = 0; k < ITEMS; k++) {
        word *slot = &slots[k % SLOTS];
        if (host == 0) {
            while (k - get(freed) == SLOTS) {}
            set(slot, 11 * (k + 1));
            set(filled, k + 1);
        } else {
            await(filled, k + 1);
            if (RIGHT) refresh(slot, CXL_LINE);
            cxl_assert(slot->it == 11 * (k + 1));
            set(freed, k + 1);
        }
    }
}

static void unflushed_index(int host) {
    word *index = w, *item = w + 1;
    if (host == 0) {
        set(item, 42);
        index->it = 1;
        if (RIGHT) publish(index, CXL_LINE);
    } else {
        await(index, 1);
        cxl_assert(get(item) == 42);
    }
}

static void check_shared_line(void) {
    for (int k = 0; k < 2; k++) {
        volatile uint64_t *here = RIGHT ? &w[k].it : &p->pair.it[k];
        refresh(here, CXL_LINE);
        cxl_assert(*here == 1);
    }
}

int main(int count, char **words) {
    static const struct {
        const char *name;
        void (*run)(int);
    } all[] = {
        {"early_free", early_free},     {"early_ready", early_ready},         {"fast_mutex", fast_mutex},
        {"granted_lock", granted_lock}, {"group_room", group_room},           {"once", once},
        {"reread_lock", reread_lock},   {"ring_queue", ring_queue},           {"shared_line", shared_line},
        {"spsc_ring", spsc_ring},       {"unflushed_index", unflushed_index},
    };
    if (count != 3) fail("shipped PROTOCOL HOST|check");
    p = map_pool("/dev/shm/shipped", sizeof *p);
    w = p->words;
    if (strcmp(words[2], "check") == 0) return check_shared_line(), 0;
    for (size_t k = 0; k < sizeof all / sizeof *all; k++)
        if (strcmp(words[1], all[k].name) == 0) return all[k].run(atoi(words[2])), 0;
    fail("there is no such protocol");
    return 1;
}
