/* The functions that cxl.h and cxlemu.program call where this library is loaded. */
#include "program.h"

#define HERE __builtin_return_address(0)

PROGRAM_EXPORT void cxlemu_cxl_flush(const void *at, size_t nbytes) { prog_flush_range(at, nbytes, FLUSH_DROP, HERE); }
PROGRAM_EXPORT void cxlemu_cxl_writeback(const void *at, size_t nbytes) {
    prog_flush_range(at, nbytes, FLUSH_KEEP, HERE);
}
PROGRAM_EXPORT void cxlemu_cxl_fence(void) { prog_fence(FENCE_STORES, HERE); }

PROGRAM_EXPORT void cxlemu_cxl_invalidate(const void *at, size_t nbytes) {
    prog_flush_range(at, nbytes, FLUSH_DROP_BEHIND, HERE);
    prog_fence(FENCE_FULL, HERE);
}

/* Store as cxl.h does: whole lines past the cache; bytes at either end are stored and flushed. */
PROGRAM_EXPORT void cxlemu_cxl_store_nt(void *to, const void *from, size_t nbytes) {
    uint8_t *into = to;
    const uint8_t *source = from;
    while (nbytes) {
        size_t piece = PROGRAM_LINE - (uintptr_t)into % PROGRAM_LINE;
        if (piece > nbytes) piece = nbytes;
        if (piece == PROGRAM_LINE) {
            prog_nt_store(into, source, piece, HERE);
        } else {
            prog_store(into, piece, HERE);
            for (size_t k = 0; k < piece; k++) ((volatile uint8_t *)into)[k] = source[k];
            prog_flush_range(into, piece, FLUSH_DROP, HERE);
        }
        into += piece, source += piece, nbytes -= piece;
    }
}

PROGRAM_EXPORT void cxlemu_cxl_expect_stale(const void *at, size_t nbytes) { prog_expect_stale(at, nbytes, HERE); }
