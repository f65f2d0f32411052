/* The functions that stand behind ours. */
#ifndef CXLEMU_REAL_H
#define CXLEMU_REAL_H

#include <dlfcn.h>

/* A pointer `real_NAME` to the next NAME, looked up once: as early as can be, because looking up takes the linker's lock, which
 * another thread may have that waits for the lock of a step; on its first call where that comes earlier still. */
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
