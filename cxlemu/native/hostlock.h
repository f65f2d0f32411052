/* One lock per emulated host, in the segment that its processes share; also among the threads of each. When its holder
 * dies, the next one gets it. */
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

/* Make the lock unless it is made: one process at a time. False when the system has no such locks. */
bool host_lock_make(host_lock *lock);

/* Wait for at most `seconds`; false when it is still held. A thread that holds it gets it again at once. */
bool host_lock_take(host_lock *lock, double seconds);

/* By its holder: let go, however often it took it. */
void host_lock_release(host_lock *lock);

/* By anyone: let go if this thread holds it. */
void host_lock_drop(host_lock *lock);

#endif
