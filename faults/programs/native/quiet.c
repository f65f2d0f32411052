/* Quiet steps: those of which other hosts cannot tell whether they come before or after a step of their own, as they only change what
 * their own host's cache holds. */
#include "self.h"

static const card_cache *cache_of(int pool) { return &image_of(here.host, pool)->cache; }

static bool hits(const program_self *me, const pool_range *r) {
    const int64_t last = (r->offset + r->nbytes - 1) / LINE_BYTES;
    if (posts_past(me)) return false;
    for (int64_t line = r->offset / LINE_BYTES; line <= last; line++)
        if (!(cache_of(r->pool)->state[line] & PRESENT)) return false;
    return true;
}

static bool nothing_is_posted(const program_self *me) {
    if (posts_past(me)) return false;
    for (int64_t k = 0; k < me->flushed.count; k++) {
        const pool_lines its = me->flushed.items[k];
        if (memchr(cache_of(its.pool)->pending + its.first, 1, (size_t)(its.last - its.first))) return false;
    }
    return true;
}

bool step_is_quiet(const program_self *me, int kind, int what, const pool_range *r) {
    switch (kind) {
    case STEP_LOAD:
    case STEP_STORE: return hits(me, r);
    case STEP_FLUSH: /* at most posts */
        return !r || (what != FLUSH_DROP_ORDERED && !cache_of(r->pool)->pending[r->offset / LINE_BYTES]);
    case STEP_FENCE: return nothing_is_posted(me);
    default: return false;
    }
}
