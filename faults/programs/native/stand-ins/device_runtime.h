/* What `cxlemu cc` knows of CUDA's and HIP's runtimes: copies, streams, events and memory, without a device. The library of
 * `cxlemu exec` has the functions; one that is not declared here is not supported. CXLEMU_DEVICE_RUNTIME(cuda) declares CUDA's. */
#ifndef CXLEMU_DEVICE_RUNTIME_H
#define CXLEMU_DEVICE_RUNTIME_H
#pragma GCC system_header

#include <stddef.h>

#if defined(__cplusplus)
#define CXLEMU_BEGIN_C extern "C" {
#define CXLEMU_END_C }
#define CXLEMU_OPTIONAL(value) = value
#else
#define CXLEMU_BEGIN_C
#define CXLEMU_END_C
#define CXLEMU_OPTIONAL(value)
#endif

#define CXLEMU_STANDS_IN(x, name, ...) x##Error_t x##name(__VA_ARGS__) __asm__("cxlemu_runtime_" #name);

#define CXLEMU_DEVICE_RUNTIME(x)                                                                                  \
    typedef enum x##Error{x##Success = 0, x##ErrorInvalidValue = 1, x##ErrorMemoryAllocation = 2,                 \
                          x##ErrorInvalidDevice = 101, x##ErrorNotReady = 600} x##Error_t;                        \
    typedef enum x##MemcpyKind{x##MemcpyHostToHost, x##MemcpyHostToDevice, x##MemcpyDeviceToHost,                 \
                               x##MemcpyDeviceToDevice, x##MemcpyDefault} x##MemcpyKind;                          \
    enum { x##StreamDefault, x##StreamNonBlocking };                                                              \
    enum { x##EventDefault, x##EventBlockingSync, x##EventDisableTiming };                                        \
    enum { x##HostRegisterDefault, x##HostRegisterPortable, x##HostRegisterMapped, x##HostRegisterIoMemory = 4 }; \
    enum { x##HostAllocDefault, x##HostAllocPortable, x##HostAllocMapped, x##HostAllocWriteCombined = 4 };        \
    typedef struct x##_stream *x##Stream_t;                                                                       \
    typedef struct x##_event *x##Event_t;                                                                         \
    CXLEMU_BEGIN_C                                                                                                \
    CXLEMU_STANDS_IN(x, PeekAtLastError, void)                                                                    \
    CXLEMU_STANDS_IN(x, GetLastError, void)                                                                       \
    CXLEMU_STANDS_IN(x, GetDeviceCount, int *count)                                                               \
    CXLEMU_STANDS_IN(x, GetDevice, int *device)                                                                   \
    CXLEMU_STANDS_IN(x, SetDevice, int device)                                                                    \
    CXLEMU_STANDS_IN(x, DeviceSynchronize, void)                                                                  \
    CXLEMU_STANDS_IN(x, Malloc, void **at, size_t nbytes)                                                         \
    CXLEMU_STANDS_IN(x, Free, void *at)                                                                           \
    CXLEMU_STANDS_IN(x, HostAlloc, void **at, size_t nbytes, unsigned flags)                                      \
    CXLEMU_STANDS_IN(x, FreeHost, void *at)                                                                       \
    CXLEMU_STANDS_IN(x, HostRegister, void *at, size_t nbytes, unsigned flags)                                    \
    CXLEMU_STANDS_IN(x, HostUnregister, void *at)                                                                 \
    CXLEMU_STANDS_IN(x, HostGetDevicePointer, void **device, void *host, unsigned flags)                          \
    CXLEMU_STANDS_IN(x, Memcpy, void *to, const void *from, size_t nbytes, x##MemcpyKind kind)                    \
    CXLEMU_STANDS_IN(x, MemcpyAsync, void *to, const void *from, size_t nbytes, x##MemcpyKind kind,               \
                     x##Stream_t stream CXLEMU_OPTIONAL(0))                                                       \
    CXLEMU_STANDS_IN(x, Memset, void *to, int byte, size_t nbytes)                                                \
    CXLEMU_STANDS_IN(x, MemsetAsync, void *to, int byte, size_t nbytes, x##Stream_t stream CXLEMU_OPTIONAL(0))    \
    CXLEMU_STANDS_IN(x, StreamCreate, x##Stream_t *stream)                                                        \
    CXLEMU_STANDS_IN(x, StreamCreateWithFlags, x##Stream_t *stream, unsigned flags)                               \
    CXLEMU_STANDS_IN(x, StreamDestroy, x##Stream_t stream)                                                        \
    CXLEMU_STANDS_IN(x, StreamSynchronize, x##Stream_t stream)                                                    \
    CXLEMU_STANDS_IN(x, StreamQuery, x##Stream_t stream)                                                          \
    CXLEMU_STANDS_IN(x, StreamWaitEvent, x##Stream_t stream, x##Event_t event, unsigned flags CXLEMU_OPTIONAL(0)) \
    CXLEMU_STANDS_IN(x, EventCreate, x##Event_t *event)                                                           \
    CXLEMU_STANDS_IN(x, EventCreateWithFlags, x##Event_t *event, unsigned flags)                                  \
    CXLEMU_STANDS_IN(x, EventDestroy, x##Event_t event)                                                           \
    CXLEMU_STANDS_IN(x, EventRecord, x##Event_t event, x##Stream_t stream CXLEMU_OPTIONAL(0))                     \
    CXLEMU_STANDS_IN(x, EventSynchronize, x##Event_t event)                                                       \
    CXLEMU_STANDS_IN(x, EventQuery, x##Event_t event)                                                             \
    const char *x##GetErrorString(x##Error_t error) __asm__("cxlemu_runtime_GetErrorString");                     \
    CXLEMU_END_C                                                                                                  \
    CXLEMU_DEVICE_TEMPLATES(x)

#if defined(__cplusplus)
#define CXLEMU_DEVICE_TEMPLATES(x)                                                         \
    template <typename T> x##Error_t x##Malloc(T **at, size_t nbytes) {                    \
        return x##Malloc((void **)(void *)at, nbytes);                                     \
    }                                                                                      \
    template <typename T> x##Error_t x##HostAlloc(T **at, size_t nbytes, unsigned flags) { \
        return x##HostAlloc((void **)(void *)at, nbytes, flags);                           \
    }
#else
#define CXLEMU_DEVICE_TEMPLATES(x)
#endif

#endif
