/* COMPUTE loads its sources and stores its destination, all of them local memory. A CHECKSUM is computed of the first
 * source, and compared with the second one, if there is one: the checksum that came with the data. A PRODUCT is made of two
 * matrices. The results of all other kernels are OPAQUE. */
#include "pass.h"

static bool within(const matrix *t, const operand *o, int64_t nbytes) {
    if (t->rows < 1 || t->nbytes < 1 || t->stride < t->nbytes || o->offset < 0 || t->nbytes > nbytes) return false;
    return o->offset <= nbytes - t->nbytes && t->rows - 1 <= (nbytes - t->nbytes - o->offset) / t->stride;
}

bool kernel_fits(const plan *whole, const program *part, const record *r) {
    const operand *all[] = {&r->dst, &r->a, &r->b, &r->c};
    if (r->arg < 0 || r->arg >= whole->kernel_count || r->dst2.kind) return false;
    const kernel *its = &whole->kernels[r->arg];
    for (int k = 0; k < 4; k++) {
        const operand *o = all[k];
        if (its->of[k].rows == 0) continue;
        if (o->kind != BUFFER || o->id >= part->buffer_count || !within(&its->of[k], o, part->buffer_bytes[o->id]))
            return false;
    }
    if (its->makes != PRODUCT) return true;
    const matrix *c = &its->of[0], *a = &its->of[1], *b = &its->of[2];
    return a->rows == c->rows && b->nbytes == c->nbytes && b->rows > 0;
}

/* Return the bytes of its rows without the gaps between them. */
static int64_t packed(const matrix *t) { return t->rows * t->nbytes; }

/* Return the term of an opaque kernel's result; 0, as for bytes that were never written, where a source was not written. */
static int32_t opaque_value(step *s, const kernel *k, const contents *source) {
    for (int i = 0; i < 3; i++)
        if (!contents_known(&source[i], packed(&k->of[1 + i]))) return 0;
    return term_of_compute(s->p, s->now.self);
}

static int32_t checksum_value(step *s, const kernel *k, const contents *source) {
    const int32_t sum = term_of_checksum(s->p, &source[0], 0, packed(&k->of[1]));
    const bool compares = k->of[2].rows && !(s->p->without >> CONTRACT & 1);
    if (compares && (sum == 0 || !contents_are(&source[1], packed(&k->of[2]), sum)))
        pass_violated(s->p, CONTRACT, UNMATCHED, s->now.self, (event){0, 0}, -1, 0);
    return sum;
}

static operand row_of(const operand *o, const matrix *t, int64_t row) {
    operand at = *o;
    at.offset += row * t->stride;
    return at;
}

void kernel_run(step *s, const record *r) {
    pass *p = s->p;
    const kernel *k = &s->kernels[r->arg];
    const operand *sources[] = {&r->a, &r->b, &r->c};
    const matrix *out = &k->of[0];
    contents *source = p->folding, *result = &source[3];
    for (int i = 0; i < 3; i++) {
        const matrix *t = &k->of[1 + i];
        contents_begin(p, &source[i]);
        for (int64_t row = 0; row < t->rows; row++) {
            const operand at = row_of(sources[i], t, row);
            pass_access_operand(s, &at, t->nbytes, LOAD, NULL);
            pass_fetch(s, &source[i], row * t->nbytes, &at, t->nbytes);
        }
    }
    contents_begin(p, result);
    if (k->makes == PRODUCT) contents_product(p, result, &source[0], &source[1], k);
    else
        contents_fill(p, result, 0, packed(out),
                      k->makes == CHECKSUM ? checksum_value(s, k, source) : opaque_value(s, k, source), 0);
    for (int64_t row = 0; row < out->rows; row++) {
        const operand at = row_of(&r->dst, out, row);
        pass_access_operand(s, &at, out->nbytes, STORE, NULL);
        pass_put(s, &at, result, row * out->nbytes, out->nbytes);
    }
}
