/* lines.h on a host whose caches show everything that is missing: in place of cxlemu/native/lines.c.
 *
 * Of every mapped card this process has an image, which holds every line from the first moment on: loads and stores go
 * there. What is not flushed stays in the image, and what is not invalidated stays as it was when it came. A line that
 * is flushed or stored non-temporally is copied when that is asked for, and reaches the card when its thread fences. If
 * the thread does not, it gets there some time, the youngest first: a doorbell before the data that it announces.
 * A 64-byte line arrives whole, as far as a reader can tell that looks at its first word first. */
#define _GNU_SOURCE /* MAP_ANONYMOUS */
#pragma GCC visibility push(default) /* one host for all extensions, and heard by tests */
#include "lines.h"
#pragma GCC visibility pop

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { LINE = 64, WORDS = LINE / 8, CARDS_MAX = 256, EVENTS_MAX = 1 << 20 };

typedef struct {
    uint8_t *card, *image, *fetched; /* fetched: what the image's lines were when they were last as on the card */
    int32_t *pending_at; /* of each line: 1 more than the index of the store that is pending, or 0 */
    int64_t nbytes;
} mapped_card;

typedef struct {
    uint8_t *to; /* on the card */
    int32_t *at;
    uint8_t bytes[LINE];
    pthread_t thread;
} store;

/* For tests: what was executed on a mapped card, kind 'f'lush, 'i'nvalidate, 'n'on-temporal store, '|' fence. */
typedef struct {
    int64_t kind, card, offset, nbytes;
} lines_event;

static struct {
    pthread_mutex_t lock;
    mapped_card cards[CARDS_MAX];
    store *pending; /* oldest first */
    size_t pending_count, pending_room;
    lines_event *events;
    int64_t event_count; /* -1: nobody listens */
    pid_t lander; /* the process in which a thread lands what nobody fences */
} host = {.lock = PTHREAD_MUTEX_INITIALIZER, .event_count = -1};

static void enter(void) { pthread_mutex_lock(&host.lock); }
static void leave(void) { pthread_mutex_unlock(&host.lock); }

typedef _Atomic uint64_t word;

static word *words(uint8_t *line) { return (word *)(void *)line; }

/* The first word is written last and read first: with it come the others. */
static void put_line(uint8_t *to, const uint8_t *bytes) {
    uint64_t line[WORDS];
    memcpy(line, bytes, LINE);
    for (int k = WORDS - 1; k >= 0; k--) atomic_store_explicit(&words(to)[k], line[k], memory_order_release);
}

/* Read until it stays as it is: a line may be put meanwhile, and travels whole wherever its first word is looked at. */
static void get_line(uint8_t *bytes, uint8_t *from) {
    uint64_t line[WORDS] = {0};
    for (bool same = false, first = true; !same; first = false) {
        same = !first;
        for (int k = 0; k < WORDS; k++) {
            const uint64_t now = atomic_load_explicit(&words(from)[k], memory_order_acquire);
            if (now != line[k]) same = false, line[k] = now;
        }
    }
    memcpy(bytes, line, LINE);
}

static mapped_card *card_of(const void *at) {
    for (int k = 0; k < CARDS_MAX; k++) {
        mapped_card *card = &host.cards[k];
        if (card->image && (const uint8_t *)at >= card->image && (const uint8_t *)at < card->image + card->nbytes)
            return card;
    }
    return NULL;
}

static void happened(int kind, const mapped_card *card, const void *at, int64_t nbytes) {
    if (host.event_count < 0 || host.event_count >= EVENTS_MAX) return;
    host.events[host.event_count++] = (lines_event){kind, card ? card - host.cards : -1,
                                                    card ? (const uint8_t *)at - card->image : 0, nbytes};
}

/* Of a store that has landed, or that a later one to its line replaced, `to` is NULL. */
static void land(store *one) {
    if (!one->to) return;
    put_line(one->to, one->bytes);
    *one->at = 0;
    one->to = NULL;
}

static void land_youngest(void) {
    while (host.pending_count && !host.pending[host.pending_count - 1].to) host.pending_count--;
    if (host.pending_count) land(&host.pending[--host.pending_count]);
}

static void *land_some_time(void *nothing) {
    (void)nothing;
    for (;;) {
        nanosleep(&(struct timespec){.tv_nsec = 200000}, NULL);
        enter();
        land_youngest();
        leave();
    }
    return NULL;
}

/* A later store of this host to the same line takes the place of an earlier one, and its own in time. */
static void post(mapped_card *card, int64_t line, const uint8_t *bytes) {
    int32_t *at = &card->pending_at[line / LINE];
    if (*at) host.pending[*at - 1].to = NULL;
    if (host.pending_count == host.pending_room) {
        host.pending_room = host.pending_room ? 2 * host.pending_room : 1024;
        host.pending = realloc(host.pending, host.pending_room * sizeof(store));
        if (!host.pending) abort();
    }
    store *one = &host.pending[host.pending_count++];
    one->to = card->card + line, one->at = at, one->thread = pthread_self();
    *at = (int32_t)host.pending_count;
    memcpy(one->bytes, bytes, LINE);
    if (host.lander == getpid()) return;
    pthread_t thread;
    host.lander = getpid();
    if (pthread_create(&thread, NULL, land_some_time, NULL) || pthread_detach(thread)) abort();
}

static void land_line(mapped_card *card, int64_t line) {
    const int32_t at = card->pending_at[line / LINE];
    if (at) land(&host.pending[at - 1]);
}

/* Call `each` for every line of a range of a mapped card, by its place in the card. */
static void each_line(mapped_card *card, const void *at, int64_t nbytes, void (*each)(mapped_card *, int64_t)) {
    const int64_t first = ((const uint8_t *)at - card->image) / LINE * LINE;
    const int64_t end = (const uint8_t *)at - card->image + nbytes;
    for (int64_t line = first; line < end && line < card->nbytes; line += LINE) each(card, line);
}

/* A line that is clean is not written back. */
static void flush_line(mapped_card *card, int64_t line) {
    uint8_t now[LINE];
    get_line(now, card->image + line);
    if (!memcmp(now, card->fetched + line, LINE)) return;
    memcpy(card->fetched + line, now, LINE);
    post(card, line, now);
}

/* What another thread of this host stores meanwhile stays: caches of one host are coherent. */
static void fetch_line(mapped_card *card, int64_t line) {
    uint8_t now[LINE], *to = card->card + line, *fetched = card->fetched + line;
    land_line(card, line);
    get_line(now, card->image + line);
    if (memcmp(now, fetched, LINE)) put_line(to, now), memcpy(fetched, now, LINE); /* it was dirty */
    get_line(now, to);
    for (int k = 0; k < WORDS; k++) {
        uint64_t was, is;
        memcpy(&was, fetched + 8 * k, 8), memcpy(&is, now + 8 * k, 8);
        if (atomic_compare_exchange_strong(&words(card->image + line)[k], &was, is)) memcpy(fetched + 8 * k, &is, 8);
    }
}

void lines_flush(const void *at, int64_t nbytes, int keep) {
    (void)keep;
    enter();
    mapped_card *card = nbytes > 0 ? card_of(at) : NULL;
    if (card) each_line(card, at, nbytes, flush_line), happened('f', card, at, nbytes);
    leave();
}

void lines_fence(void) {
    enter();
    happened('|', NULL, NULL, 0);
    size_t kept = 0;
    for (size_t k = 0; k < host.pending_count; k++) {
        store *one = &host.pending[k];
        if (one->to && pthread_equal(one->thread, pthread_self())) land(one);
        if (!one->to) continue;
        *one->at = (int32_t)kept + 1;
        host.pending[kept++] = *one;
    }
    host.pending_count = kept;
    leave();
    atomic_thread_fence(memory_order_seq_cst);
}

/* Who looks again and again gives what was posted the time to land. */
void lines_invalidate(const void *at, int64_t nbytes) {
    atomic_thread_fence(memory_order_seq_cst);
    enter();
    mapped_card *card = nbytes > 0 ? card_of(at) : NULL;
    if (card) {
        land_youngest();
        each_line(card, at, nbytes, fetch_line), happened('i', card, at, nbytes);
    }
    leave();
}

void lines_copy_nt(void *to, const void *from, int64_t nbytes, int width) {
    (void)width;
    enter();
    mapped_card *card = nbytes > 0 ? card_of(to) : NULL;
    memcpy(to, from, (size_t)nbytes);
    if (card) each_line(card, to, nbytes, flush_line), happened('n', card, to, nbytes);
    leave();
}

void lines_copy_past(void *to, const void *from, int64_t nbytes) { lines_copy_nt(to, from, nbytes, 0); }

/* Carries its own bytes only, and arrives at once. A line that is dirty is written back before. */
void lines_store_nt(void *at, uint64_t value) {
    enter();
    mapped_card *card = card_of(at);
    const int64_t offset = card ? (const uint8_t *)at - card->image : 0;
    if (card) fetch_line(card, offset / LINE * LINE), happened('n', card, at, 8);
    if (card) atomic_store((word *)(void *)(card->card + offset), value), memcpy(card->fetched + offset, &value, 8);
    atomic_store((word *)at, value);
    leave();
}

int lines_has_width(int width) { return width == 8; }

const char *lines_instructions(void) { return "an image of every card"; }

static void *anonymous(int64_t nbytes, const uint8_t *like) {
    void *pages = mmap(NULL, (size_t)nbytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages == MAP_FAILED) abort();
    if (like) memcpy(pages, like, (size_t)nbytes);
    return pages;
}

uint8_t *lines_mapped(uint8_t *pages, int64_t nbytes) {
    enter();
    int k = 0;
    while (k < CARDS_MAX && host.cards[k].image) k++;
    if (k == CARDS_MAX) abort();
    uint8_t *image = anonymous(nbytes, pages);
    host.cards[k] = (mapped_card){
        .card = pages,
        .image = image,
        .fetched = anonymous(nbytes, image), /* not of the pages, which another host may have stored to meanwhile */
        .pending_at = anonymous(nbytes / LINE * (int64_t)sizeof(int32_t) + LINE, NULL),
        .nbytes = nbytes,
    };
    leave();
    return host.cards[k].image;
}

uint8_t *lines_unmapped(uint8_t *used) {
    enter();
    mapped_card *card = card_of(used);
    if (!card) abort();
    for (size_t k = 0; k < host.pending_count; k++)
        if (host.pending[k].to >= card->card && host.pending[k].to < card->card + card->nbytes) land(&host.pending[k]);
    uint8_t *pages = card->card;
    munmap(card->image, (size_t)card->nbytes), munmap(card->fetched, (size_t)card->nbytes);
    munmap(card->pending_at, (size_t)(card->nbytes / LINE) * sizeof(int32_t) + LINE);
    *card = (mapped_card){0};
    leave();
    return pages;
}

/* Begin to keep events. */
__attribute__((visibility("default"))) void lines_listen(void) {
    enter();
    if (!host.events) host.events = malloc(EVENTS_MAX * sizeof(lines_event));
    if (!host.events) abort();
    host.event_count = 0;
    leave();
}

/* Copies what happened since lines_listen, and forgets it: how much there was, at most `most`. */
__attribute__((visibility("default"))) int64_t lines_heard(lines_event *into, int64_t most) {
    enter();
    const int64_t count = host.event_count < most ? host.event_count : most;
    if (count > 0) memcpy(into, host.events, (size_t)count * sizeof(lines_event));
    host.event_count = 0;
    leave();
    return count;
}
