#include "packed.h"

#include <string.h>

enum { WORDS = (sizeof(record) - 8) / 8 }; /* behind op, dtype, redop, flags and arg */
_Static_assert(sizeof(record) == 8 * (WORDS + 1) && sizeof(packed) == 16, "a record is whole words");

static packed head_of(const record *i) {
    int64_t words[WORDS];
    packed head = {i->op, i->dtype, i->redop, i->flags, i->arg, 0, 0, 0};
    memcpy(words, (const char *)i + 8, sizeof words);
    int count = 0;
    for (int k = 0; k < WORDS; k++)
        if (words[k]) head.there |= (uint16_t)(1 << k), count++;
    head.heads = (uint16_t)(1 + (count + 1) / 2);
    return head;
}

int64_t packed_bytes(const record *records, int64_t count) {
    int64_t heads = 0;
    for (int64_t k = 0; k < count; k++) heads += head_of(&records[k]).heads;
    return heads * (int64_t)sizeof(packed);
}

void packed_fill(const record *records, int64_t count, packed *into) {
    for (int64_t k = 0; k < count; k++) {
        *into = head_of(&records[k]);
        char *to = (char *)(into + 1), *end = (char *)next_packed(into);
        for (int word = 0; word < WORDS; word++) {
            if (!(into->there >> word & 1)) continue;
            memcpy(to, (const char *)&records[k] + 8 + 8 * word, 8);
            to += 8;
        }
        if (to < end) memset(to, 0, 8);
        into = (packed *)end;
    }
}

record packed_record(const packed *its) {
    record i = {.op = its->op, .dtype = its->dtype, .redop = its->redop, .flags = its->flags, .arg = its->arg};
    const char *from = (const char *)(its + 1);
    for (unsigned left = its->there; left; left &= left - 1, from += 8)
        memcpy((char *)&i + 8 + 8 * __builtin_ctz(left), from, 8);
    return i;
}
