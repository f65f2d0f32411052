/* The C library's own functions, which ours stand in for. */
#ifndef CXLEMU_REAL_H
#define CXLEMU_REAL_H

#include <dlfcn.h>

/* Define `real_NAME()`, which returns the C library's NAME. It is looked up once, as early as possible: in a constructor, or
 * on the first call where that comes before. Looking up takes the linker's lock; later, a thread that holds it may be
 * waiting for the lock of a step. */
#define REAL(result, name, ...)                        \
    typedef result name##_function(__VA_ARGS__);       \
    static name##_function *real_##name(void) {        \
        static void *_Atomic found;                    \
        void *at = found;                              \
        name##_function *function;                     \
        if (!at) found = at = dlsym(RTLD_NEXT, #name); \
        __builtin_memcpy(&function, &at, sizeof at);   \
        return function;                               \
    }                                                  \
    __attribute__((constructor(101))) static void look_up_##name(void) { real_##name(); }

#endif
