/* Kernels on the multiprocessors of one rank, as compute.py defines them. */
#include "cost.h"

int64_t cost_compute_tiles(const kernel_cost *cost, int64_t *free_ns, int32_t multiprocessors, int64_t now,
                           int64_t *first, int64_t *last) {
    int64_t end = now;
    *first = *last = now;
    for (int64_t tile = 0; tile < cost->tiles; tile++) {
        int32_t next = 0;
        for (int32_t k = 1; k < multiprocessors; k++)
            if (free_ns[k] < free_ns[next]) next = k;
        *last = later(now, free_ns[next]);
        if (tile == 0) *first = *last;
        end = free_ns[next] = *last + cost->tile_ns;
    }
    return end;
}

bool cost_needs_result(const record *i) {
    if (!i) return true;
    switch (i->op) {
    case COMPUTE:
    case RECORD:
    case AWAIT:
    case WAIT:
    case WAIT_ALL:
    case WAIT_DATA: return false;
    default: return true;
    }
}
