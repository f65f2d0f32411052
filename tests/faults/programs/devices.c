/* Copies by devices: what may be done before their events are seen, and what may not. devices WHAT */
#include "words.h"

enum { LINE = 64, MANY = 200, CROWD = 65 };

typedef struct {
    word flag;
    struct {
        volatile uint64_t it, beside;
        char rest[LINE - 16];
    } data[CROWD];
} shared;

static uint64_t ones[CROWD], back;
static cxl_event event, other;

static void copy(shared *s, int at) { cxl_device_copy(&s->data[at].it, &ones[at], sizeof back, &event); }

static void publish_data(shared *s) {
    publish(s->data, LINE);
    set(&s->flag, 1);
}

static void used_early(shared *s, const char *what) {
    copy(s, 0);
    if (!strcmp(what, "load")) back = s->data[0].it;
    if (!strcmp(what, "store")) s->data[0].it = 2;
    if (!strcmp(what, "twice")) cxl_device_copy(&s->data[0].it, ones, sizeof back, &other);
    if (!strcmp(what, "again")) copy(s, 1);
    cxl_device_wait(&event);
    cxl_device_wait(&other);
    publish_data(s);
}

/* The flush comes too early, even where the copy was earlier; the fence in its time. */
static void flushed_early(shared *s) {
    copy(s, 0);
    cxl_flush(s->data, LINE);
    cxl_device_wait(&event);
    cxl_fence();
    set(&s->flag, 1);
}

/* Past the cache it is the fence that comes too early. */
static void fenced_early(shared *s) {
    copy(s, 0);
    publish(s->data, LINE);
    cxl_device_wait(&event);
    set(&s->flag, 1);
}

/* The word that tells of the copy lies in its line. */
static void beside(shared *s) {
    copy(s, 0);
    s->data[0].beside = 1;
    publish(s->data, LINE);
    cxl_device_wait(&event);
    publish(s->data, LINE);
}

static void look_beside(shared *s) {
    do refresh(s->data, LINE);
    while (!s->data[0].beside);
    back = s->data[0].it;
}

static void in_time(shared *s) {
    copy(s, 0);
    cxl_device_wait(&event);
    publish_data(s);
}

/* One after another, more than there is room for at a time: each is waited for in the other way. */
static void many(shared *s) {
    for (int k = 0; k < MANY; k++) {
        copy(s, k % CROWD);
        if (k % 2) cxl_device_wait(&event);
        else
            while (!cxl_device_query(&event));
        if (s->data[k % CROWD].it != 1) fail("a copy has ended, and is not there");
        publish(&s->data[k % CROWD], LINE);
    }
}

/* Two at a time, in any order. */
static void both(shared *s) {
    copy(s, 0);
    cxl_device_copy(&s->data[1].it, ones, sizeof back, &other);
    cxl_device_wait(&other);
    cxl_device_wait(&event);
    publish(&s->data[0], LINE);
    publish(&s->data[1], LINE);
}

/* What the pool holds. */
static void look(shared *s) {
    refresh(s->data, LINE);
    printf("=%d\n", (int)s->data[0].it);
}

/* Works on where a host has died, whose device may have copied or not. */
static void repair(shared *s) {
    const uint64_t ended = get(&s->flag);
    refresh(s->data, LINE);
    if (s->data[0].it != 1 && ended) fail("the copy is lost");
    s->data[0].it = 2;
    publish(s->data, LINE);
    refresh(s->data, LINE);
    if (s->data[0].it != 2) fail("the copy came after all");
}

int main(int count, char **words) {
    shared *s = map_pool("/dev/shm/devices", sizeof *s);
    const char *what = count == 2 ? words[1] : "";
    for (int k = 0; k < CROWD; k++) ones[k] = 1;
    if (!strcmp(what, "in-time")) in_time(s);
    else if (!strcmp(what, "flushed-early")) flushed_early(s);
    else if (!strcmp(what, "fenced-early")) fenced_early(s);
    else if (!strcmp(what, "beside")) beside(s);
    else if (!strcmp(what, "look-beside")) look_beside(s);
    else if (!strcmp(what, "many")) many(s);
    else if (!strcmp(what, "both")) both(s);
    else if (!strcmp(what, "left")) copy(s, 0); /* nobody waits for it */
    else if (!strcmp(what, "crowd"))
        for (int k = 0; k < CROWD; k++) event.copy = 0, copy(s, k);
    else if (!strcmp(what, "look")) look(s);
    else if (!strcmp(what, "repair")) repair(s);
    else if (!strcmp(what, "read") || !strcmp(what, "await")) {
        while (!get(&s->flag) && what[0] == 'a');
        if (s->flag.it) look(s);
    } else used_early(s, what);
    return 0;
}
