/* Functions of the C library that load or store their arguments' bytes; recompiled code calls them where a compiler
 * would have expanded them. On a pool, a call makes a step for each range that it loads or stores. */
#define _GNU_SOURCE
#define __NO_INLINE__ 1 /* no functions of these names in headers */
#undef _FORTIFY_SOURCE /* which Ubuntu's gcc defines: headers would bring checked functions of these names */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bytes.h"
#include "real.h"
#include "self.h"
#include "tears.h"

#define HERE __builtin_return_address(0)
#define UNTOUCHED(at) __builtin_expect(outside_pools(at), 1)

/* The library itself calls these functions, so compilers must not turn their loops into calls of them. */
#pragma GCC optimize("no-tree-loop-distribute-patterns")

static void copy_up(uint8_t *to, const uint8_t *from, size_t nbytes) {
    for (size_t k = 0; k < nbytes; k++) ((volatile uint8_t *)to)[k] = from[k];
}

static void copy_down(uint8_t *to, const uint8_t *from, size_t nbytes) {
    while (nbytes--) ((volatile uint8_t *)to)[nbytes] = from[nbytes];
}

REAL(void *, memmove, void *, const void *, size_t)
REAL(void *, memset, void *, int, size_t)

static bool resolved; /* whether the C library's functions are found; until then, bytes are moved one by one */

__attribute__((constructor(102))) static void have_resolved(void) { resolved = true; }

static void move_bytes(void *to, const void *from, size_t nbytes) {
    if (__builtin_expect(resolved, 1)) real_memmove()(to, from, nbytes);
    else if ((uintptr_t)to < (uintptr_t)from) copy_up(to, from, nbytes);
    else copy_down(to, from, nbytes);
}

/* Move bytes between mappings; each part of one is an access of its own. */
static void *moved_across(uint8_t *to, const uint8_t *from, size_t nbytes, const void *pc) {
    uint8_t *kept = malloc(nbytes);
    if (!kept) abort();
    for (size_t at = 0, piece; at < nbytes; at += piece) {
        piece = in_one_mapping(from + at, nbytes - at);
        moved(kept + at, from + at, piece, pc);
    }
    for (size_t at = 0, piece; at < nbytes; at += piece) {
        piece = in_one_mapping(to + at, nbytes - at);
        moved(to + at, kept + at, piece, pc);
    }
    free(kept);
    return to;
}

/* Move bytes from a pool by two loads, if nature divides them. */
static bool moved_in_two(uint8_t *to, const uint8_t *from, size_t nbytes, const void *pc) {
    divided_load load;
    if (!nature_divides(from, nbytes, &load)) return false;
    const size_t cut = (size_t)load.cut, first = load.down ? cut : 0, rest = cut - first;
    prog_load(from + first, load.down ? nbytes - cut : cut, pc);
    move_bytes(to + first, reachable(from + first), load.down ? nbytes - cut : cut);
    load_divided(&load);
    prog_load_rest(from + rest, load.down ? cut : nbytes - cut, &load, pc);
    move_bytes(to + rest, reachable(from + rest), load.down ? cut : nbytes - cut);
    return true;
}

void *moved(void *to, const void *from, size_t nbytes, const void *pc) {
    if (in_one_mapping(to, in_one_mapping(from, nbytes)) < nbytes) return moved_across(to, from, nbytes, pc);
    if (nbytes > 8 && !UNTOUCHED(from) && UNTOUCHED(to) && self_here() && moved_in_two(to, from, nbytes, pc)) return to;
    if (!UNTOUCHED(from)) prog_load(from, nbytes, pc), from = reachable(from);
    if (UNTOUCHED(to)) {
        move_bytes(to, from, nbytes);
        return to;
    }
    prog_store(to, nbytes, pc);
    move_bytes(reachable(to), from, nbytes);
    return to;
}

PROGRAM_EXPORT void *memcpy(void *restrict to, const void *restrict from, size_t nbytes) {
    return moved(to, from, nbytes, HERE);
}
PROGRAM_EXPORT void *memmove(void *to, const void *from, size_t nbytes) { return moved(to, from, nbytes, HERE); }
PROGRAM_EXPORT void *mempcpy(void *restrict to, const void *restrict from, size_t nbytes) {
    return (uint8_t *)moved(to, from, nbytes, HERE) + nbytes;
}
PROGRAM_EXPORT void *__memcpy_chk(void *restrict to, const void *restrict from, size_t nbytes, size_t room) {
    if (room < nbytes) abort();
    return moved(to, from, nbytes, HERE);
}
PROGRAM_EXPORT void *__memmove_chk(void *to, const void *from, size_t nbytes, size_t room) {
    if (room < nbytes) abort();
    return moved(to, from, nbytes, HERE);
}

PROGRAM_EXPORT void *__mempcpy_chk(void *to, const void *from, size_t nbytes, size_t room) {
    if (room < nbytes) abort();
    return (uint8_t *)moved(to, from, nbytes, HERE) + nbytes;
}
PROGRAM_EXPORT void bcopy(const void *from, void *to, size_t nbytes) { moved(to, from, nbytes, HERE); }

static void *filled(void *at, int byte, size_t nbytes, const void *pc) {
    void *into = at;
    const size_t piece = in_one_mapping(at, nbytes);
    if (piece < nbytes) filled((uint8_t *)at + piece, byte, nbytes - piece, pc), nbytes = piece;
    if (!UNTOUCHED(at)) prog_store(at, nbytes, pc), into = reachable(at);
    if (__builtin_expect(resolved, 1)) real_memset()(into, byte, nbytes);
    for (size_t k = 0; !resolved && k < nbytes; k++) ((volatile uint8_t *)into)[k] = (uint8_t)byte;
    return at;
}
PROGRAM_EXPORT void *memset(void *at, int byte, size_t nbytes) { return filled(at, byte, nbytes, HERE); }
PROGRAM_EXPORT void *__memset_chk(void *at, int byte, size_t nbytes, size_t room) {
    if (room < nbytes) abort();
    return filled(at, byte, nbytes, HERE);
}
PROGRAM_EXPORT void bzero(void *at, size_t nbytes) { filled(at, 0, nbytes, HERE); }
PROGRAM_EXPORT void explicit_bzero(void *at, size_t nbytes) { filled(at, 0, nbytes, HERE); }
PROGRAM_EXPORT void __explicit_bzero_chk(void *at, size_t nbytes, size_t room) {
    if (room < nbytes) abort();
    filled(at, 0, nbytes, HERE);
}

PROGRAM_EXPORT void *__tsan_memcpy(void *to, const void *from, size_t nbytes) { return moved(to, from, nbytes, HERE); }
PROGRAM_EXPORT void *__tsan_memmove(void *to, const void *from, size_t nbytes) { return moved(to, from, nbytes, HERE); }
PROGRAM_EXPORT void *__tsan_memset(void *at, int byte, size_t nbytes) { return filled(at, byte, nbytes, HERE); }

/* --- functions that read ------------------------------------------------------------------------------------------ */

/* Return the length of a string in a pool up to its last byte, `end`, at most `most`. Load it line by line, as far as it is read. */
static size_t length_in_pool(const char *text, size_t most, char end, const void *pc) {
    for (size_t begin = 0; begin < most;) {
        const uintptr_t at = (uintptr_t)text + begin;
        size_t piece = LINE_BYTES - at % LINE_BYTES;
        if (piece > most - begin) piece = most - begin;
        prog_load(text + begin, piece, pc);
        for (size_t k = 0; k < piece; k++)
            if (((const volatile char *)reachable(text + begin))[k] == end) return begin + k;
        begin += piece;
    }
    return most;
}

REAL(size_t, strlen, const char *)
REAL(size_t, strnlen, const char *, size_t)

static size_t length(const char *text, size_t most, const void *pc) {
    if (!UNTOUCHED(text)) return length_in_pool(text, most, 0, pc);
    return most == SIZE_MAX ? real_strlen()(text) : real_strnlen()(text, most);
}

void look(const char *text, size_t most, const void *pc) {
    if (!UNTOUCHED(text)) length_in_pool(text, most, 0, pc);
}

PROGRAM_EXPORT size_t strlen(const char *text) { return length(text, SIZE_MAX, HERE); }
PROGRAM_EXPORT size_t strnlen(const char *text, size_t most) { return length(text, most, HERE); }

REAL(int, memcmp, const void *, const void *, size_t)
static int compared(const void *a, const void *b, size_t nbytes, const void *pc) {
    const size_t piece = in_one_mapping(a, in_one_mapping(b, nbytes));
    if (!UNTOUCHED(a)) prog_load(a, piece, pc);
    if (!UNTOUCHED(b)) prog_load(b, piece, pc);
    const int order = real_memcmp()(reachable(a), reachable(b), piece);
    if (order || piece == nbytes) return order;
    return compared((const uint8_t *)a + piece, (const uint8_t *)b + piece, nbytes - piece, pc);
}
PROGRAM_EXPORT int memcmp(const void *a, const void *b, size_t nbytes) { return compared(a, b, nbytes, HERE); }
PROGRAM_EXPORT int bcmp(const void *a, const void *b, size_t nbytes) { return compared(a, b, nbytes, HERE); }

/* Return the program's address for a byte that was found in the image; NULL for NULL. */
static void *back(const void *found, const void *at) {
    return found ? (uint8_t *)(uintptr_t)at + ((const uint8_t *)found - (const uint8_t *)reachable(at)) : NULL;
}

REAL(void *, memchr, const void *, int, size_t)
PROGRAM_EXPORT void *memchr(const void *at, int byte, size_t nbytes) {
    if (!UNTOUCHED(at)) length_in_pool(at, nbytes, (char)byte, HERE); /* as C says: no byte behind the one it finds */
    return back(real_memchr()(reachable(at), byte, nbytes), at);
}

REAL(void *, memrchr, const void *, int, size_t)
PROGRAM_EXPORT void *memrchr(const void *at, int byte, size_t nbytes) {
    if (!UNTOUCHED(at)) prog_load(at, nbytes, HERE);
    return back(real_memrchr()(reachable(at), byte, nbytes), at);
}
REAL(void *, rawmemchr, const void *, int)
PROGRAM_EXPORT void *rawmemchr(const void *at, int byte) {
    if (!UNTOUCHED(at)) length_in_pool(at, SIZE_MAX, (char)byte, HERE);
    return back(real_rawmemchr()(reachable(at), byte), at);
}
REAL(void *, memmem, const void *, size_t, const void *, size_t)
PROGRAM_EXPORT void *memmem(const void *at, size_t nbytes, const void *wanted, size_t wanted_bytes) {
    if (!UNTOUCHED(at)) prog_load(at, nbytes, HERE);
    if (!UNTOUCHED(wanted)) prog_load(wanted, wanted_bytes, HERE);
    return back(real_memmem()(reachable(at), nbytes, reachable(wanted), wanted_bytes), at);
}

/* A function of two strings that are read whole. */
#define OF_TWO(result, name, told)                                 \
    REAL(result, name, const char *, const char *)                 \
    PROGRAM_EXPORT result name(const char *a, const char *b) {     \
        look(a, SIZE_MAX, HERE), look(b, SIZE_MAX, HERE);          \
        return told(real_##name()(reachable(a), reachable(b)), a); \
    }
#define AS_IT_IS(found, at) (found)
OF_TWO(int, strcmp, AS_IT_IS)
OF_TWO(int, strcasecmp, AS_IT_IS)
OF_TWO(int, strcoll, AS_IT_IS)
OF_TWO(int, strverscmp, AS_IT_IS)
OF_TWO(size_t, strspn, AS_IT_IS)
OF_TWO(size_t, strcspn, AS_IT_IS)
OF_TWO(char *, strpbrk, back)
OF_TWO(char *, strstr, back)
OF_TWO(char *, strcasestr, back)
REAL(int, strncmp, const char *, const char *, size_t)
PROGRAM_EXPORT int strncmp(const char *a, const char *b, size_t most) {
    look(a, most, HERE), look(b, most, HERE);
    return real_strncmp()(reachable(a), reachable(b), most);
}
#define OF_BYTE(name)                                            \
    REAL(char *, name, const char *, int)                        \
    PROGRAM_EXPORT char *name(const char *text, int byte) {      \
        look(text, SIZE_MAX, HERE);                              \
        return back(real_##name()(reachable(text), byte), text); \
    }
OF_BYTE(strchr)
OF_BYTE(strchrnul)
OF_BYTE(strrchr)
REAL(char *, strdup, const char *)
PROGRAM_EXPORT char *strdup(const char *text) {
    look(text, SIZE_MAX, HERE);
    return real_strdup()(reachable(text));
}

REAL(int, strncasecmp, const char *, const char *, size_t)
PROGRAM_EXPORT int strncasecmp(const char *a, const char *b, size_t most) {
    look(a, most, HERE), look(b, most, HERE);
    return real_strncasecmp()(reachable(a), reachable(b), most);
}
REAL(char *, strndup, const char *, size_t)
PROGRAM_EXPORT char *strndup(const char *text, size_t most) {
    look(text, most, HERE);
    return real_strndup()(reachable(text), most);
}

/* Numbers at the begin of a string; the second names are those of newer C libraries. */
#define INTEGER(result, name)                                                              \
    REAL(result, name, const char *, char **, int)                                         \
    PROGRAM_EXPORT result name(const char *restrict text, char **restrict end, int base) { \
        char *found;                                                                       \
        look(text, SIZE_MAX, HERE);                                                        \
        const result number = real_##name()(reachable(text), &found, base);                \
        found = back(found, text);                                                         \
        if (end) moved(end, &found, sizeof found, HERE);                                   \
        return number;                                                                     \
    }
#define FLOATING(result, name)                                                   \
    REAL(result, name, const char *, char **)                                    \
    PROGRAM_EXPORT result name(const char *restrict text, char **restrict end) { \
        char *found;                                                             \
        look(text, SIZE_MAX, HERE);                                              \
        const result number = real_##name()(reachable(text), &found);            \
        found = back(found, text);                                               \
        if (end) moved(end, &found, sizeof found, HERE);                         \
        return number;                                                           \
    }
#define OF_TEXT(result, name)                      \
    REAL(result, name, const char *)               \
    PROGRAM_EXPORT result name(const char *text) { \
        look(text, SIZE_MAX, HERE);                \
        return real_##name()(reachable(text));     \
    }
INTEGER(long, strtol)
INTEGER(long, __isoc23_strtol)
INTEGER(unsigned long, strtoul)
INTEGER(unsigned long, __isoc23_strtoul)
INTEGER(long long, strtoll)
INTEGER(long long, __isoc23_strtoll)
INTEGER(unsigned long long, strtoull)
INTEGER(unsigned long long, __isoc23_strtoull)
INTEGER(intmax_t, strtoimax)
INTEGER(intmax_t, __isoc23_strtoimax)
INTEGER(uintmax_t, strtoumax)
INTEGER(uintmax_t, __isoc23_strtoumax)
FLOATING(float, strtof)
FLOATING(double, strtod)
FLOATING(long double, strtold)
OF_TEXT(int, atoi)
OF_TEXT(long, atol)
OF_TEXT(long long, atoll)
OF_TEXT(double, atof)
OF_TEXT(int, puts)

/* C++'s from_chars of floating point, which lies in its library; one of integers is the program's own code. */
typedef struct {
    const char *end;
    int error;
} from_chars_result;
static void look_number(const char *at, const char *end, const void *pc) {
    static const char its[] = "+-.0123456789abcdefghijklmnopqrstuvwxyz";
    for (char byte = '0'; at < end && byte && real_memchr()(its, byte | (byte > '9') << 5, sizeof its); at++) {
        prog_load(at, 1, pc);
        byte = *(const volatile char *)reachable(at);
    }
}
#define FROM_CHARS(name, type)                                                                          \
    REAL(from_chars_result, name, const char *, const char *, type *, int)                              \
    PROGRAM_EXPORT from_chars_result name(const char *text, const char *end, type *value, int format) { \
        type number;                                                                                    \
        const char *at = reachable(text);                                                               \
        if (!UNTOUCHED(text)) look_number(text, end, HERE);                                             \
        from_chars_result found = real_##name()(at, at + (end - text), &number, format);                \
        found.end = text + (found.end - at);                                                            \
        if (!found.error) moved(value, &number, sizeof number, HERE);                                   \
        return found;                                                                                   \
    }
FROM_CHARS(_ZSt10from_charsPKcS0_RfSt12chars_format, float)
FROM_CHARS(_ZSt10from_charsPKcS0_RdSt12chars_format, double)
FROM_CHARS(_ZSt10from_charsPKcS0_ReSt12chars_format, long double)

#define PUTS(name)                                                              \
    REAL(int, name, const char *, FILE *)                                       \
    PROGRAM_EXPORT int name(const char *restrict text, FILE *restrict stream) { \
        look(text, SIZE_MAX, HERE);                                             \
        return real_##name()(reachable(text), stream);                          \
    }
PUTS(fputs)
PUTS(fputs_unlocked)
REAL(void, qsort, void *, size_t, size_t, int (*)(const void *, const void *))
PROGRAM_EXPORT void qsort(void *at, size_t count, size_t size, int (*order)(const void *, const void *)) {
    void *kept = UNTOUCHED(at) ? NULL : malloc(count * size);
    if (!kept) {
        real_qsort()(at, count, size, order);
        return;
    }
    real_qsort()(moved(kept, at, count * size, HERE), count, size, order);
    moved(at, kept, count * size, HERE);
    free(kept);
}

static size_t offset_of(const void *found, const void *at, size_t most) {
    return found ? (size_t)((const uint8_t *)found - (const uint8_t *)at) : most;
}

/* --- functions that write strings --------------------------------------------------------------------------------- */

PROGRAM_EXPORT char *strcpy(char *restrict to, const char *restrict from) {
    return moved(to, from, length(from, SIZE_MAX, HERE) + 1, HERE);
}
PROGRAM_EXPORT char *__strcpy_chk(char *restrict to, const char *restrict from, size_t room) {
    const size_t nbytes = length(from, SIZE_MAX, HERE) + 1;
    if (room < nbytes) abort();
    return moved(to, from, nbytes, HERE);
}
PROGRAM_EXPORT char *stpcpy(char *restrict to, const char *restrict from) {
    const size_t nbytes = length(from, SIZE_MAX, HERE);
    return (char *)moved(to, from, nbytes + 1, HERE) + nbytes;
}

PROGRAM_EXPORT char *__stpcpy_chk(char *restrict to, const char *restrict from, size_t room) {
    const size_t nbytes = length(from, SIZE_MAX, HERE);
    if (room <= nbytes) abort();
    return (char *)moved(to, from, nbytes + 1, HERE) + nbytes;
}

REAL(void, swab, const void *, void *, ssize_t)
PROGRAM_EXPORT void swab(const void *restrict from, void *restrict to, ssize_t nbytes) {
    if (nbytes > 0 && !UNTOUCHED(from)) prog_load(from, (size_t)nbytes & ~(size_t)1, HERE);
    if (nbytes > 0 && !UNTOUCHED(to)) prog_store(to, (size_t)nbytes & ~(size_t)1, HERE);
    real_swab()(reachable(from), reachable(to), nbytes);
}
REAL(size_t, strxfrm, char *, const char *, size_t)
PROGRAM_EXPORT size_t strxfrm(char *restrict to, const char *restrict from, size_t room) {
    char *kept = UNTOUCHED(to) || !room ? NULL : malloc(room);
    look(from, SIZE_MAX, HERE);
    const size_t all = real_strxfrm()(kept ? kept : to, reachable(from), room);
    if (kept) moved(to, kept, all < room ? all + 1 : room, HERE);
    free(kept);
    return all;
}

PROGRAM_EXPORT void *memccpy(void *restrict to, const void *restrict from, int byte, size_t nbytes) {
    const size_t before = UNTOUCHED(from) ? offset_of(real_memchr()(from, byte, nbytes), from, nbytes)
                                          : length_in_pool(from, nbytes, (char)byte, HERE);
    moved(to, from, before < nbytes ? before + 1 : nbytes, HERE);
    return before < nbytes ? (uint8_t *)to + before + 1 : NULL;
}

static char *padded(char *to, const char *from, size_t nbytes, const void *pc) {
    const size_t text = length(from, nbytes, pc);
    moved(to, from, text, pc);
    if (text < nbytes) filled(to + text, 0, nbytes - text, pc);
    return to;
}
PROGRAM_EXPORT char *stpncpy(char *restrict to, const char *restrict from, size_t nbytes) {
    const size_t text = length(from, nbytes, HERE);
    return padded(to, from, nbytes, HERE) + text;
}
PROGRAM_EXPORT char *__stpncpy_chk(char *restrict to, const char *restrict from, size_t nbytes, size_t room) {
    if (room < nbytes) abort();
    const size_t text = length(from, nbytes, HERE);
    return padded(to, from, nbytes, HERE) + text;
}
PROGRAM_EXPORT char *strncpy(char *restrict to, const char *restrict from, size_t nbytes) {
    return padded(to, from, nbytes, HERE);
}
PROGRAM_EXPORT char *__strncpy_chk(char *restrict to, const char *restrict from, size_t nbytes, size_t room) {
    if (room < nbytes) abort();
    return padded(to, from, nbytes, HERE);
}
/* Append a string, at most `most` of its bytes; it fits into `room`. */
static char *appended(char *to, const char *from, size_t most, size_t room, const void *pc) {
    const size_t before = length(to, SIZE_MAX, pc), nbytes = length(from, most, pc);
    if (room - before <= nbytes || room <= before) abort();
    moved(to + before, from, nbytes, pc);
    filled(to + before + nbytes, 0, 1, pc);
    return to;
}
PROGRAM_EXPORT char *strcat(char *restrict to, const char *restrict from) {
    return appended(to, from, SIZE_MAX, SIZE_MAX, HERE);
}
PROGRAM_EXPORT char *strncat(char *restrict to, const char *restrict from, size_t most) {
    return appended(to, from, most, SIZE_MAX, HERE);
}
PROGRAM_EXPORT char *__strcat_chk(char *restrict to, const char *restrict from, size_t room) {
    return appended(to, from, SIZE_MAX, room, HERE);
}
PROGRAM_EXPORT char *__strncat_chk(char *restrict to, const char *restrict from, size_t most, size_t room) {
    return appended(to, from, most, room, HERE);
}

/* Tokens: a zero replaces the byte of `set` behind one. Return where the rest begins; NULL where none does. */
static char *rest_behind_token(char *text, const char *set, const void *pc) {
    char *end = text + real_strcspn()(reachable(text), reachable(set));
    if (!*(const char *)reachable(end)) return NULL;
    filled(end, 0, 1, pc);
    return end + 1;
}
static char *next_token(char *text, const char *set, char **rest, const void *pc) {
    if (!text) moved(&text, rest, sizeof text, pc);
    look(text, SIZE_MAX, pc), look(set, SIZE_MAX, pc);
    text += real_strspn()(reachable(text), reachable(set));
    char *left = rest_behind_token(text, set, pc);
    if (!left) left = text + real_strlen()(reachable(text));
    moved(rest, &left, sizeof left, pc);
    return left > text ? text : NULL;
}
PROGRAM_EXPORT char *strtok_r(char *restrict text, const char *restrict set, char **restrict rest) {
    return next_token(text, set, rest, HERE);
}
PROGRAM_EXPORT char *strtok(char *restrict text, const char *restrict set) {
    static char *rest;
    return next_token(text, set, &rest, HERE);
}
PROGRAM_EXPORT char *strsep(char **restrict at, const char *restrict set) {
    char *text;
    moved(&text, at, sizeof text, HERE);
    if (!text) return NULL;
    look(text, SIZE_MAX, HERE), look(set, SIZE_MAX, HERE);
    char *rest = rest_behind_token(text, set, HERE);
    moved(at, &rest, sizeof rest, HERE);
    return text;
}
