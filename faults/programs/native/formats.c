/* Functions of the C library that follow a format: printf's kind, whose strings may lie in a pool, as may what they write; and sscanf's,
 * which reads one. What it stores through its pointers is found without an announcement. */
#define _GNU_SOURCE
#define __NO_INLINE__ 1
#undef _FORTIFY_SOURCE
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bytes.h"
#include "real.h"
#include "self.h"

#define HERE __builtin_return_address(0)

typedef struct {
    va_list left;
} arguments;

/* Read a width or a precision. */
static int number(const char **at, arguments *its) {
    int value = 0;
    if (**at == '*') return (*at)++, va_arg(its->left, int);
    while (**at >= '0' && **at <= '9') value = value * 10 + *(*at)++ - '0';
    return value;
}

/* Look at the strings among the values, up to a conversion that is not known here. */
static void look_at_strings(const char *at, arguments its, const void *pc) {
    while (*(at += strcspn(at, "%"))) {
        size_t most = SIZE_MAX;
        at += 1 + strspn(at + 1, "-+ #0'I");
        number(&at, &its);
        if (*at == '.') {
            const int precision = (at++, number(&at, &its));
            if (precision >= 0) most = (size_t)precision;
        }
        const char *size = at;
        at += strspn(at, "hlLqjzt");
        const bool is_long = at > size && *size != 'h';
        const char what = *at++, *text;
        if (!what) return;
        if (strchr("diouxXbBcC", what)) {
            if (is_long) (void)va_arg(its.left, long long);
            else (void)va_arg(its.left, int);
        } else if (strchr("aefgAEFG", what)) {
            if (*size == 'L') (void)va_arg(its.left, long double);
            else (void)va_arg(its.left, double);
        } else if (strchr("sSpn", what)) {
            text = va_arg(its.left, const char *);
            if (text && what == 's' && !is_long) look(text, most, pc);
        } else if (!strchr("m%", what)) {
            return; /* such as the $ behind a value's place */
        }
    }
}

/* Where pools are closed, the C library's own loads are seen. */
static const char *read_format(const char *format, va_list values, const void *pc) {
    arguments its;
    if (!mapping_count || pools_closed) return reachable(format);
    look(format, SIZE_MAX, pc);
    va_copy(its.left, values);
    look_at_strings(format, its, pc);
    va_end(its.left);
    return format;
}

/* vsnprintf into a pool: format into private memory, and move the result from there. */
REAL(int, vsnprintf, char *, size_t, const char *, va_list)
static int formatted(char *to, size_t room, const char *format, va_list values, const void *pc) {
    format = read_format(format, values, pc);
    if (outside_pools(to) || room == 0) return real_vsnprintf()(to, room, format, values);
    const size_t most = room < 65536 ? room : 65536;
    char *text = malloc(most);
    if (!text) return -1;
    const int length = real_vsnprintf()(text, most, format, values);
    if (length >= 0) moved(to, text, (size_t)length < most ? (size_t)length + 1 : most, pc);
    free(text);
    return length;
}

REAL(int, vfprintf, FILE *, const char *, va_list)
static int printed(FILE *to, const char *format, va_list values, const void *pc) {
    return real_vfprintf()(to, read_format(format, values, pc), values);
}
REAL(int, vdprintf, int, const char *, va_list)
static int printed_into(int file, const char *format, va_list values, const void *pc) {
    return real_vdprintf()(file, read_format(format, values, pc), values);
}
REAL(int, vasprintf, char **, const char *, va_list)
static int allocated(char **to, const char *format, va_list values, const void *pc) {
    return real_vasprintf()(to, read_format(format, values, pc), values);
}

/* A function of values, with `call` on them; and the one of a list of values. */
#define VALUES(call)          \
    va_list values;           \
    va_start(values, format); \
    const int done = call;    \
    va_end(values);           \
    return done

enum { ANY_ROOM = 1 << 30 };
#define BOTH(name, takes, call)                                                                          \
    PROGRAM_EXPORT int v##name(PASS takes, const char *restrict format, va_list values) { return call; } \
    PROGRAM_EXPORT int name(PASS takes, const char *restrict format, ...) { VALUES(call); }
#define PASS(...) __VA_ARGS__
BOTH(snprintf, (char *restrict to, size_t room), formatted(to, room, format, values, HERE))
BOTH(sprintf, (char *restrict to), formatted(to, ANY_ROOM, format, values, HERE))
BOTH(fprintf, (FILE *restrict to), printed(to, format, values, HERE))
BOTH(dprintf, (int file), printed_into(file, format, values, HERE))
BOTH(asprintf, (char **restrict to), allocated(to, format, values, HERE))
PROGRAM_EXPORT int vprintf(const char *restrict format, va_list values) {
    return printed(stdout, format, values, HERE);
}
PROGRAM_EXPORT int printf(const char *restrict format, ...) { VALUES(printed(stdout, format, values, HERE)); }
PROGRAM_EXPORT int __snprintf_chk(char *restrict to, size_t room, int flag, size_t there, const char *restrict format,
                                  ...) {
    (void)flag, (void)there;
    VALUES(formatted(to, room, format, values, HERE));
}
PROGRAM_EXPORT int __sprintf_chk(char *restrict to, int flag, size_t there, const char *restrict format, ...) {
    (void)flag;
    VALUES(formatted(to, there < ANY_ROOM ? there : ANY_ROOM, format, values, HERE));
}

/* The prefix names what a standard's scanf reads; headers would rename these, so they have names of our own. */
#define SCANS(prefix, its)                                                                          \
    REAL(int, prefix##vsscanf, const char *, const char *, va_list)                                 \
    int vscan_##its(const char *text, const char *format, va_list into) __asm__(#prefix "vsscanf"); \
    PROGRAM_EXPORT int vscan_##its(const char *text, const char *format, va_list into) {            \
        look(text, SIZE_MAX, HERE);                                                                 \
        return real_##prefix##vsscanf()(reachable(text), reachable(format), into);                  \
    }                                                                                               \
    int scan_##its(const char *text, const char *format, ...) __asm__(#prefix "sscanf");            \
    PROGRAM_EXPORT int scan_##its(const char *text, const char *format, ...) {                      \
        look(text, SIZE_MAX, HERE);                                                                 \
        VALUES(real_##prefix##vsscanf()(reachable(text), reachable(format), values));               \
    }
SCANS(, old)
SCANS(__isoc99_, c99)
SCANS(__isoc23_, c23)
