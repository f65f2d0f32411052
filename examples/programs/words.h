/* For the programs here: numbers in a pool, each in a line of its own, set and read as other hosts need it. */
#include "pool.h"

typedef struct {
    _Alignas(CXL_LINE) volatile uint64_t it;
} word;

static inline void set(word *w, uint64_t value) {
    w->it = value;
    publish(w, sizeof *w);
}

static inline uint64_t get(word *w) {
    refresh(w, sizeof *w);
    return w->it;
}
