/* A device of host 0 copies a message to the pool, and one of host 1 copies it from there.
 * Three mistakes: -DEARLY publishes the message before the device's copy has ended, -DUNFLUSHED leaves it in the cache of the device's
 * host, and -DSTALE has host 1's device read what the cache of its host still holds. */
#include "words.h"

enum { WORDS = 8, VALUE = 7 };

typedef struct {
    word flag;
    uint64_t words[WORDS];
} message;

static void send(message *m) {
    uint64_t words[WORDS];
    cxl_event copied = {0};
    for (int k = 0; k < WORDS; k++) words[k] = VALUE;
    cxl_device_copy(m->words, words, sizeof words, &copied);
#ifndef EARLY
    cxl_device_wait(&copied);
#endif
#ifdef UNFLUSHED
    cxl_fence();
#else
    publish(m->words, sizeof words);
#endif
    set(&m->flag, 1);
    cxl_device_wait(&copied); /* its source lives until here */
}

static void receive(message *m) {
    uint64_t words[WORDS] = {0};
    cxl_event copied = {0};
    while (!get(&m->flag));
#ifndef STALE
    refresh(m->words, sizeof words);
#endif
    cxl_device_copy(words, m->words, sizeof words, &copied);
    cxl_device_wait(&copied);
    for (int k = 0; k < WORDS; k++)
        if (words[k] != VALUE) fail("not the message that was sent");
}

int main(int count, char **words) {
    message *m = map_pool("/dev/shm/message", sizeof *m);
    if (count == 2 && !strcmp(words[1], "send")) send(m);
    else if (count == 2 && !strcmp(words[1], "receive")) receive(m);
    else fail("device_copy send|receive");
    return 0;
}
