/* A COMPUTE: it loads its sources and stores its destination, all local memory. What a kernel makes is opaque. One that
 * checks makes the checksum of its first source; if it has a second one, that is the checksum that came with the first. */
#include "pass.h"

bool kernel_fits(const plan *whole, const program *part, const record *r) {
    const operand *all[] = {&r->dst, &r->a, &r->b, &r->c};
    if (r->arg < 0 || r->arg >= whole->kernel_count || r->dst2.kind) return false;
    for (int k = 0; k < 4; k++) {
        const operand *o = all[k];
        const int64_t nbytes = whole->kernels[r->arg].nbytes[k];
        if (nbytes == 0 && o->kind == NOTHING) continue;
        if (o->kind != BUFFER || o->id >= part->buffer_count || nbytes < 0 || o->offset < 0) return false;
        if (nbytes > part->buffer_bytes[o->id] || o->offset > part->buffer_bytes[o->id] - nbytes) return false;
    }
    return true;
}

/* What is made of bytes that nobody wrote is as good as not written. */
static int32_t opaque_value(step *s, const kernel *k, const contents *source) {
    for (int i = 0; i < 3; i++)
        if (!contents_known(&source[i], k->nbytes[1 + i])) return 0;
    return computed_term(s->p, s->now.self);
}

static int32_t checksum_value(step *s, const kernel *k, const contents *source) {
    const int32_t sum = checksum_term(s->p, &source[0], k->nbytes[1]);
    const bool compares = k->nbytes[2] && !(s->p->without >> CONTRACT & 1);
    if (compares && (sum == 0 || !contents_are(&source[1], k->nbytes[2], sum)))
        violated(s->p, CONTRACT, UNMATCHED, s->now.self, (event){0, 0}, -1, 0);
    return sum;
}

void run_kernel(step *s, const record *r) {
    pass *p = s->p;
    const kernel *k = &s->kernels[r->arg];
    const operand *sources[] = {&r->a, &r->b, &r->c};
    contents *source = p->folding, *result = &source[3];
    for (int i = 0; i < 3; i++) {
        const int64_t nbytes = k->nbytes[1 + i];
        contents_begin(p, &source[i]);
        if (nbytes == 0) continue;
        access_operand(s, sources[i], nbytes, LOAD, NULL);
        fetch(s, &source[i], 0, sources[i], nbytes);
    }
    access_operand(s, &r->dst, k->nbytes[0], STORE, NULL);
    contents_begin(p, result);
    contents_fill(p, result, 0, k->nbytes[0], k->checks ? checksum_value(s, k, source) : opaque_value(s, k, source), 0);
    put(s, &r->dst, result, 0, k->nbytes[0]);
}
