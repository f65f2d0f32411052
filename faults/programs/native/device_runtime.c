/* Stand-ins for the functions of CUDA's and HIP's runtimes that stand-ins/device_runtime.h declares under both names: streams are
 * queues of copies, events are places in them. There is one device, whose memory is its host's. */
#include <stdlib.h>
#include <string.h>

#include "device.h"
#include "program.h"

#define HERE __builtin_return_address(0)
#define RUNTIME(name) PROGRAM_EXPORT int cxlemu_runtime_##name

enum { SUCCESS, INVALID_VALUE, NO_MEMORY, INVALID_DEVICE = 101, NOT_READY = 600 }; /* as both runtimes number them */
enum { ALIGNED = 256, NON_BLOCKING = 1 };

static _Thread_local int last_error;
static _Atomic uint64_t queues;

static int result(int error) { return error ? last_error = error : SUCCESS; }

static uint64_t queue_of(const void *stream) { return stream ? (uint64_t)(uintptr_t)stream : QUEUE_DEFAULT; }

/* --- errors and devices ------------------------------------------------------------------------------------------------ */

RUNTIME(PeekAtLastError)(void) { return last_error; }
RUNTIME(GetLastError)(void) {
    const int error = last_error;
    last_error = SUCCESS;
    return error;
}

PROGRAM_EXPORT const char *cxlemu_runtime_GetErrorString(int error) {
    switch (error) {
    case SUCCESS: return "no error";
    case INVALID_VALUE: return "invalid argument";
    case NO_MEMORY: return "out of memory";
    case INVALID_DEVICE: return "invalid device ordinal";
    case NOT_READY: return "device not ready";
    default: return "unrecognized error code";
    }
}

RUNTIME(GetDeviceCount)(int *count) { return *count = 1, SUCCESS; }
RUNTIME(GetDevice)(int *device) { return *device = 0, SUCCESS; }
RUNTIME(SetDevice)(int device) { return result(device ? INVALID_DEVICE : SUCCESS); }
RUNTIME(DeviceSynchronize)(void) { return queue_wait(queue_end(QUEUE_ALL), HERE), SUCCESS; }

/* --- memory -------------------------------------------------------------------------------------------------------------- */

RUNTIME(Malloc)(void **at, size_t nbytes) {
    *at = aligned_alloc(ALIGNED, (nbytes + ALIGNED - 1) / ALIGNED * ALIGNED);
    return result(*at || !nbytes ? SUCCESS : NO_MEMORY);
}
RUNTIME(HostAlloc)(void **at, size_t nbytes, unsigned flags) { return (void)flags, cxlemu_runtime_Malloc(at, nbytes); }
RUNTIME(FreeHost)(void *at) { return free(at), SUCCESS; }
RUNTIME(Free)(void *at) { return queue_wait(queue_end(QUEUE_ALL), HERE), free(at), SUCCESS; }

RUNTIME(HostRegister)(void *at, size_t nbytes, unsigned flags) {
    return (void)flags, result(at && nbytes ? SUCCESS : INVALID_VALUE);
}
RUNTIME(HostUnregister)(void *at) { return result(at ? SUCCESS : INVALID_VALUE); }
RUNTIME(HostGetDevicePointer)(void **device, void *host, unsigned flags) {
    return (void)flags, *device = host, SUCCESS;
}

static int copy(void *to, const void *from, int byte, size_t nbytes, const void *stream, const void *pc) {
    if (nbytes) queue_copy(queue_of(stream), (queue_place){0}, to, from, byte, nbytes, pc);
    return SUCCESS;
}

static int wait_for(const void *stream, const void *pc) { return queue_wait(queue_end(queue_of(stream)), pc), SUCCESS; }

RUNTIME(MemcpyAsync)(void *to, const void *from, size_t nbytes, int kind, const void *stream) {
    return (void)kind, from ? copy(to, from, 0, nbytes, stream, HERE) : result(INVALID_VALUE);
}
RUNTIME(Memcpy)(void *to, const void *from, size_t nbytes, int kind) {
    if (!from) return (void)kind, result(INVALID_VALUE);
    return copy(to, from, 0, nbytes, NULL, HERE), wait_for(NULL, HERE);
}
RUNTIME(MemsetAsync)(void *to, int byte, size_t nbytes, const void *stream) {
    return copy(to, NULL, byte, nbytes, stream, HERE);
}
RUNTIME(Memset)(void *to, int byte, size_t nbytes) {
    return copy(to, NULL, byte, nbytes, NULL, HERE), wait_for(NULL, HERE);
}

/* --- streams and events -------------------------------------------------------------------------------------------------- */

RUNTIME(StreamCreateWithFlags)(void **stream, unsigned flags) {
    const uint64_t queue = ++queues * QUEUES_FROM | (flags & NON_BLOCKING ? 0 : QUEUE_BLOCKS);
    return *stream = (void *)(uintptr_t)queue, SUCCESS;
}
RUNTIME(StreamCreate)(void **stream) { return cxlemu_runtime_StreamCreateWithFlags(stream, 0); }
RUNTIME(StreamDestroy)(const void *stream) { return result(stream ? SUCCESS : INVALID_VALUE); } /* its copies go on */
RUNTIME(StreamSynchronize)(const void *stream) { return wait_for(stream, HERE); }
RUNTIME(StreamQuery)(const void *stream) {
    return queue_query(queue_end(queue_of(stream)), HERE) ? SUCCESS : NOT_READY;
}

RUNTIME(EventCreateWithFlags)(queue_place **event, unsigned flags) {
    return (void)flags, *event = calloc(1, sizeof **event), result(*event ? SUCCESS : NO_MEMORY);
}
RUNTIME(EventCreate)(queue_place **event) { return cxlemu_runtime_EventCreateWithFlags(event, 0); }
RUNTIME(EventDestroy)(queue_place *event) { return free(event), SUCCESS; }
RUNTIME(EventRecord)(queue_place *event, const void *stream) { return *event = queue_end(queue_of(stream)), SUCCESS; }
RUNTIME(EventSynchronize)(const queue_place *event) { return queue_wait(*event, HERE), SUCCESS; }
RUNTIME(EventQuery)(const queue_place *event) { return queue_query(*event, HERE) ? SUCCESS : NOT_READY; }
RUNTIME(StreamWaitEvent)(const void *stream, const queue_place *event, unsigned flags) {
    return (void)flags, queue_copy(queue_of(stream), *event, NULL, NULL, 0, 0, HERE), SUCCESS;
}
