/* What records do through an emulated host's cache: the same operations in the same order as engines/reference.py. */
#ifndef CXLEMU_THROUGH_H
#define CXLEMU_THROUGH_H

#include "core.h"
#include "shadow.h"

/* One of WRITE, WRITE_NT, FLUSH, FENCE, INVALIDATE, READ, REDUCE, SIGNAL, SIGNAL_DATA. next: the records after
 * a WRITE that flush just what it writes, and fence it. */
enum status shadow_step(program *p, const record *r, enum follows next);

/* The line of a doorbell as it is in the pool now. */
enum status shadow_look(const program *p, int32_t doorbell, int64_t epoch, uint8_t line[LINE_BYTES]);

#endif
