/* `cxlemu cc` includes this before every C and C++ file. A compiler expands these builtins to instructions that it does not announce,
 * whatever -fno-builtin says, so they become calls. The names are our own, as a header that the program includes later declares the
 * C library's; _FORTIFY_SOURCE would hide calls behind such builtins. */
#ifndef CXLEMU_CALLS_H
#define CXLEMU_CALLS_H
#pragma GCC system_header
#undef _FORTIFY_SOURCE

#if !defined(__ASSEMBLER__)
#if defined(__cplusplus)
extern "C" {
#endif
#define CXLEMU_CALL(result, name, ...) result __cxlemu_##name(__VA_ARGS__) __asm__(#name)
CXLEMU_CALL(void *, memcpy, void *, const void *, __SIZE_TYPE__);
CXLEMU_CALL(void *, memmove, void *, const void *, __SIZE_TYPE__);
CXLEMU_CALL(void *, mempcpy, void *, const void *, __SIZE_TYPE__);
CXLEMU_CALL(void, bcopy, const void *, void *, __SIZE_TYPE__);
CXLEMU_CALL(void *, memset, void *, int, __SIZE_TYPE__);
CXLEMU_CALL(void, bzero, void *, __SIZE_TYPE__);
CXLEMU_CALL(int, memcmp, const void *, const void *, __SIZE_TYPE__);
CXLEMU_CALL(int, bcmp, const void *, const void *, __SIZE_TYPE__);
CXLEMU_CALL(void *, memchr, const void *, int, __SIZE_TYPE__);
CXLEMU_CALL(char *, strcpy, char *, const char *);
CXLEMU_CALL(char *, stpcpy, char *, const char *);
CXLEMU_CALL(char *, strncpy, char *, const char *, __SIZE_TYPE__);
CXLEMU_CALL(char *, stpncpy, char *, const char *, __SIZE_TYPE__);
CXLEMU_CALL(char *, strcat, char *, const char *);
CXLEMU_CALL(char *, strncat, char *, const char *, __SIZE_TYPE__);
CXLEMU_CALL(char *, strdup, const char *);
CXLEMU_CALL(__SIZE_TYPE__, strlen, const char *);
CXLEMU_CALL(__SIZE_TYPE__, strnlen, const char *, __SIZE_TYPE__);
CXLEMU_CALL(int, strcmp, const char *, const char *);
CXLEMU_CALL(int, strncmp, const char *, const char *, __SIZE_TYPE__);
CXLEMU_CALL(char *, strchr, const char *, int);
CXLEMU_CALL(char *, strrchr, const char *, int);
CXLEMU_CALL(char *, strstr, const char *, const char *);
CXLEMU_CALL(int, sprintf, char *, const char *, ...);
CXLEMU_CALL(int, snprintf, char *, __SIZE_TYPE__, const char *, ...);
CXLEMU_CALL(void *, __memcpy_chk, void *, const void *, __SIZE_TYPE__, __SIZE_TYPE__);
CXLEMU_CALL(void *, __memmove_chk, void *, const void *, __SIZE_TYPE__, __SIZE_TYPE__);
CXLEMU_CALL(void *, __mempcpy_chk, void *, const void *, __SIZE_TYPE__, __SIZE_TYPE__);
CXLEMU_CALL(void *, __memset_chk, void *, int, __SIZE_TYPE__, __SIZE_TYPE__);
CXLEMU_CALL(char *, __strcpy_chk, char *, const char *, __SIZE_TYPE__);
CXLEMU_CALL(char *, __stpcpy_chk, char *, const char *, __SIZE_TYPE__);
CXLEMU_CALL(char *, __strncpy_chk, char *, const char *, __SIZE_TYPE__, __SIZE_TYPE__);
CXLEMU_CALL(char *, __stpncpy_chk, char *, const char *, __SIZE_TYPE__, __SIZE_TYPE__);
CXLEMU_CALL(char *, __strcat_chk, char *, const char *, __SIZE_TYPE__);
CXLEMU_CALL(char *, __strncat_chk, char *, const char *, __SIZE_TYPE__, __SIZE_TYPE__);
CXLEMU_CALL(int, __sprintf_chk, char *, int, __SIZE_TYPE__, const char *, ...);
CXLEMU_CALL(int, __snprintf_chk, char *, __SIZE_TYPE__, int, __SIZE_TYPE__, const char *, ...);
#undef CXLEMU_CALL
#if defined(__cplusplus)
}
#endif
/* These two also stand where a constant is wanted, which has no call. */
#define __builtin_memcmp(...) \
    (__builtin_constant_p(__builtin_memcmp(__VA_ARGS__)) ? __builtin_memcmp(__VA_ARGS__) : __cxlemu_memcmp(__VA_ARGS__))
#define __builtin_strlen(...) \
    (__builtin_constant_p(__builtin_strlen(__VA_ARGS__)) ? __builtin_strlen(__VA_ARGS__) : __cxlemu_strlen(__VA_ARGS__))
#define __builtin_memcpy __cxlemu_memcpy
#define __builtin_memmove __cxlemu_memmove
#define __builtin_mempcpy __cxlemu_mempcpy
#define __builtin_bcopy __cxlemu_bcopy
#define __builtin_memset __cxlemu_memset
#define __builtin_bzero __cxlemu_bzero
#define __builtin_bcmp __cxlemu_bcmp
#define __builtin_memchr __cxlemu_memchr
#define __builtin_strcpy __cxlemu_strcpy
#define __builtin_stpcpy __cxlemu_stpcpy
#define __builtin_strncpy __cxlemu_strncpy
#define __builtin_stpncpy __cxlemu_stpncpy
#define __builtin_strcat __cxlemu_strcat
#define __builtin_strncat __cxlemu_strncat
#define __builtin_strdup __cxlemu_strdup
#define __builtin_strnlen __cxlemu_strnlen
#define __builtin_strcmp __cxlemu_strcmp
#define __builtin_strncmp __cxlemu_strncmp
#define __builtin_strchr __cxlemu_strchr
#define __builtin_strrchr __cxlemu_strrchr
#define __builtin_strstr __cxlemu_strstr
#define __builtin_sprintf __cxlemu_sprintf
#define __builtin_snprintf __cxlemu_snprintf
#define __builtin___memcpy_chk __cxlemu___memcpy_chk
#define __builtin___memmove_chk __cxlemu___memmove_chk
#define __builtin___mempcpy_chk __cxlemu___mempcpy_chk
#define __builtin___memset_chk __cxlemu___memset_chk
#define __builtin___strcpy_chk __cxlemu___strcpy_chk
#define __builtin___stpcpy_chk __cxlemu___stpcpy_chk
#define __builtin___strncpy_chk __cxlemu___strncpy_chk
#define __builtin___stpncpy_chk __cxlemu___stpncpy_chk
#define __builtin___strcat_chk __cxlemu___strcat_chk
#define __builtin___strncat_chk __cxlemu___strncat_chk
#define __builtin___sprintf_chk __cxlemu___sprintf_chk
#define __builtin___snprintf_chk __cxlemu___snprintf_chk
/* A function that is exempt from a thread sanitizer is not exempt from ours. */
#define no_sanitize_thread unused
#define __no_sanitize_thread__ unused
#if !defined(__clang__)
#define no_sanitize(...) unused
#define __no_sanitize__(...) unused
#else
#define no_sanitize(...) annotate("") /* also as [[clang::...]] */
#define __no_sanitize__(...) annotate("")
#define disable_sanitizer_instrumentation unused
#define vectorize_width(...) vectorize_width(1) /* of a loop's pragma: it announces no vector of more than 16 bytes */
#define simdlen(...)
#endif
#endif
#endif
