/* One lock per emulated host, for all threads of its processes, in the segment that they share. When its holder dies,
 * the next thread that waits gets it. */
#ifndef CXLEMU_HOSTLOCK_H
#define CXLEMU_HOSTLOCK_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

enum { HOST_LOCK_BYTES = 64 };

typedef struct {
    _Atomic uint32_t made; /* 0 in a new segment */
    uint32_t taken; /* how often its holder took it */
    pthread_mutex_t mutex;
} host_lock;

_Static_assert(sizeof(host_lock) <= HOST_LOCK_BYTES, "memory/cache.py has too little room for the lock");

/* Make the lock unless it is made; only one process at a time may call this. Return false when the system has no such
 * locks. */
bool host_lock_make(host_lock *lock);

/* Wait for the lock for at most `seconds`. Return false when it is still held. Its holder gets it again at once. */
bool host_lock_take(host_lock *lock, double seconds);

/* Release the lock, however often its holder took it. Only the holder calls this. */
void host_lock_release(host_lock *lock);

/* Release the lock if this thread holds it. */
void host_lock_drop(host_lock *lock);

#endif
