/* Records executed through an emulated host's cache: the same operations in the same order as in
 * engines/reference.py. */
#ifndef CXLEMU_SHADOW_EXECUTOR_H
#define CXLEMU_SHADOW_EXECUTOR_H

#include "core.h"
#include "shadow.h"

/* Execute a WRITE, WRITE_NT, FLUSH, FENCE, INVALIDATE, READ, REDUCE, SIGNAL or SIGNAL_DATA. next: whether the records
 * after a WRITE flush just its bytes, and fence them. Return as the functions of shadow.h do. */
enum status shadow_step(program *p, const record *r, enum follows next);

/* Read a doorbell's line as it is in the pool now. Return as shadow_poll does. */
enum status shadow_look(const program *p, int32_t doorbell, int64_t epoch, uint8_t line[LINE_BYTES]);

#endif
