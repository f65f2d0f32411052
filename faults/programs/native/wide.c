/* The C library's functions of wide characters that std::wstring and its kind call, as those of bytes in bytes.c. */
#define _GNU_SOURCE
#define __NO_INLINE__ 1
#undef _FORTIFY_SOURCE
#include <stdlib.h>
#include <wchar.h>

#include "bytes.h"
#include "real.h"
#include "self.h"

#define HERE __builtin_return_address(0)
#define BYTES(count) ((count) * sizeof(wchar_t))

static void load(const wchar_t *at, size_t count, const void *pc) {
    if (!outside_pools(at)) prog_load(at, BYTES(count), pc);
}

REAL(size_t, wcslen, const wchar_t *)
REAL(size_t, wcsnlen, const wchar_t *, size_t)

/* Return the length of a string, at most `most`. */
static size_t length(const wchar_t *text, size_t most, const void *pc) {
    if (outside_pools(text)) return most == SIZE_MAX ? real_wcslen()(text) : real_wcsnlen()(text, most);
    for (size_t k = 0; k < most; k++) {
        prog_load(text + k, sizeof *text, pc);
        if (!((const volatile wchar_t *)reachable(text))[k]) return k;
    }
    return most;
}

PROGRAM_EXPORT wchar_t *wmemcpy(wchar_t *restrict to, const wchar_t *restrict from, size_t count) {
    return moved(to, from, BYTES(count), HERE);
}
PROGRAM_EXPORT wchar_t *wmemmove(wchar_t *to, const wchar_t *from, size_t count) {
    return moved(to, from, BYTES(count), HERE);
}
PROGRAM_EXPORT wchar_t *wcscpy(wchar_t *restrict to, const wchar_t *restrict from) {
    return moved(to, from, BYTES(length(from, SIZE_MAX, HERE) + 1), HERE);
}
PROGRAM_EXPORT size_t wcslen(const wchar_t *text) { return length(text, SIZE_MAX, HERE); }
PROGRAM_EXPORT size_t wcsnlen(const wchar_t *text, size_t most) { return length(text, most, HERE); }

REAL(wchar_t *, wmemset, wchar_t *, wchar_t, size_t)
PROGRAM_EXPORT wchar_t *wmemset(wchar_t *at, wchar_t value, size_t count) {
    if (!outside_pools(at)) prog_store(at, BYTES(count), HERE);
    real_wmemset()(reachable(at), value, count);
    return at;
}
REAL(int, wmemcmp, const wchar_t *, const wchar_t *, size_t)
PROGRAM_EXPORT int wmemcmp(const wchar_t *a, const wchar_t *b, size_t count) {
    load(a, count, HERE), load(b, count, HERE);
    return real_wmemcmp()(reachable(a), reachable(b), count);
}
REAL(int, wcsncmp, const wchar_t *, const wchar_t *, size_t)
PROGRAM_EXPORT int wcsncmp(const wchar_t *a, const wchar_t *b, size_t most) {
    if (!outside_pools(a)) length(a, most, HERE);
    if (!outside_pools(b)) length(b, most, HERE);
    return real_wcsncmp()(reachable(a), reachable(b), most);
}
REAL(int, wcscmp, const wchar_t *, const wchar_t *)
PROGRAM_EXPORT int wcscmp(const wchar_t *a, const wchar_t *b) {
    if (!outside_pools(a)) length(a, SIZE_MAX, HERE);
    if (!outside_pools(b)) length(b, SIZE_MAX, HERE);
    return real_wcscmp()(reachable(a), reachable(b));
}
REAL(size_t, mbstowcs, wchar_t *, const char *, size_t)
PROGRAM_EXPORT size_t mbstowcs(wchar_t *restrict to, const char *restrict from, size_t most) {
    look(from, SIZE_MAX, HERE);
    return real_mbstowcs()(reachable(to), reachable(from), most);
}
