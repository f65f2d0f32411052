/* Queues of copies by devices, such as a stream of CUDA's: each copy begins when those before it have ended. */
#ifndef CXLEMU_DEVICE_H
#define CXLEMU_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* QUEUE_DEFAULT comes behind what was asked for in the queues that have the bit QUEUE_BLOCKS, and before what is asked for there
 * later; QUEUE_ALL behind everything. Other queues have numbers from QUEUES_FROM on. */
enum { QUEUE_NONE, QUEUE_DEFAULT, QUEUE_BLOCKS, QUEUE_ALL, QUEUES_FROM };

/* A place in a queue: behind the copies there with lower numbers. */
typedef struct {
    uint64_t queue, number;
} queue_place;

queue_place queue_end(uint64_t queue); /* behind all that was asked for so far */

/* Ask for a copy, of bytes or, where `from` is NULL, of one byte again and again; it also comes behind a place of another queue. */
void queue_copy(uint64_t queue, queue_place behind, void *to, const void *from, int byte, size_t nbytes,
                const void *pc);
bool queue_query(queue_place at, const void *pc); /* whether all before there has ended */
void queue_wait(queue_place at, const void *pc);

/* Whether the copy of one device's thread comes before that of another one, as their queues have it. */
bool device_is_before(int first, int then);

#endif
