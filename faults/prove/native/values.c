/* What bytes are made of: terms, symbols for the contributions that they were folded from. The pass finds them in its own
 * order; where the rules hold, every execution has the same. collectives/checking/symbolic.py does this in Python, for one
 * plan by itself. */
#include "pass.h"

#include <stdlib.h>
#include <string.h>

/* --- terms: equal terms have equal numbers --------------------------------------------------------------------- */

/* The kinds of terms, by what byte x of a term is:
 *
 *   GIVEN     byte x of the input that rank `right` was given in call `left`, in buffer `by`
 *   FOLDED    byte x of left, folded with byte x + by of right
 *   DIVIDED   byte x of left, divided by the number `by`
 *   COMPUTED  what a kernel made in the step that `by` names: opaque
 *   CHECKED   the checksum of the bytes that left stands for and, behind them, those of right from byte `by` on
 *   UP_TO     ends the bytes of left after `by` of them
 *   BELOW     a column: that of left, and below it the element of right at byte x + by
 *   DOT       the row left (a CHECKED) times the column right, in units of `by`
 *   ALIKE     no byte: byte x + by of left is folded from the contributions of byte x of right, in another order
 *
 * NOBODY stands for bytes that were never written. */
enum { NOBODY, GIVEN, FOLDED, DIVIDED, COMPUTED, CHECKED, UP_TO, BELOW, DOT, ALIKE };

static int64_t hash_of(const term *t) {
    uint64_t h = (uint64_t)t->by * 0x9e3779b97f4a7c15u + (uint64_t)t->kind;
    h = (h ^ (h >> 29) ^ (uint64_t)(uint32_t)t->left) * 0xbf58476d1ce4e5b9u;
    h = (h ^ (h >> 32) ^ (uint64_t)(uint32_t)t->right) * 0x94d049bb133111ebu;
    return (int64_t)(h >> 1);
}

static void rehash(pass *p) {
    const int64_t size = p->slots_of_terms ? 2 * p->slots_of_terms : 1024;
    int32_t *bigger = pass_zeroed(p, (size_t)size, sizeof *bigger);
    for (int32_t k = 1; k < p->terms; k++) {
        int64_t at = hash_of(&p->term[k]) & (size - 1);
        while (bigger[at]) at = (at + 1) & (size - 1);
        bigger[at] = k;
    }
    free(p->slot_of_term);
    p->slot_of_term = bigger, p->slots_of_terms = size;
}

/* Return where the term's number is, or will be once it has one: the place has 0 so far. */
static int32_t *number_of(pass *p, const term *t) {
    if (2 * (int64_t)p->terms >= p->slots_of_terms) rehash(p);
    int64_t at = hash_of(t) & (p->slots_of_terms - 1);
    for (; p->slot_of_term[at]; at = (at + 1) & (p->slots_of_terms - 1)) {
        const term *known = &p->term[p->slot_of_term[at]];
        if (known->kind == t->kind && known->left == t->left && known->right == t->right && known->by == t->by) break;
    }
    return &p->slot_of_term[at];
}

static int32_t term_of(pass *p, int32_t kind, int32_t left, int32_t right, int64_t by) {
    const term t = {kind, left, right, by};
    int32_t *number = number_of(p, &t);
    if (*number) return *number;
    const int32_t made = p->terms ? p->terms : 1;
    p->term = pass_room_for(p, p->term, &p->term_room, made + 1, sizeof *p->term);
    p->term[made] = t, p->terms = made + 1;
    return *number = made;
}

/* Whether a term is an opaque result of a kernel, as is everything that is made of one. */
static bool opaque(const pass *p, int32_t number) { return number && p->term[number].kind == COMPUTED; }

static int32_t folded_with(pass *p, int32_t left, int32_t right, int64_t by) {
    return opaque(p, left) ? left : opaque(p, right) ? right : term_of(p, FOLDED, left, right, by);
}

static int32_t divided(pass *p, int32_t left, int64_t divisor) {
    return opaque(p, left) ? left : term_of(p, DIVIDED, left, 0, divisor);
}

/* --- contents: byte a of a memory is byte a + shift of the run's term ------------------------------------------- */

static int find(const contents *c, int64_t at) {
    int low = 0, high = c->runs;
    while (high - low > 1) {
        const int middle = low + (high - low) / 2;
        if (c->run[middle].begin <= at) low = middle;
        else high = middle;
    }
    return low;
}

static bool alike(const run *a, const run *b) { return a->term == b->term && a->shift == b->shift; }

void contents_begin(pass *p, contents *c) {
    c->run = pass_room_for(p, c->run, &c->room, 1, sizeof *c->run);
    c->run[0] = (run){0, NOBODY, 0}, c->runs = 1;
}

/* Add a run, unless it goes on as the one before it. */
static void add_run(pass *p, contents *c, run r) {
    if (c->runs && alike(&c->run[c->runs - 1], &r)) return;
    c->run = pass_room_for(p, c->run, &c->room, c->runs + 1, sizeof *c->run);
    c->run[c->runs++] = r;
}

/* Put the runs of `laid` in place of bytes [begin, end). */
static void lay(pass *p, contents *c, int64_t begin, int64_t end, contents *laid) {
    const int first = find(c, begin), last = find(c, end), kept = first + (c->run[first].begin < begin);
    run after = c->run[last];
    after.begin = end;
    add_run(p, laid, after);
    const bool joined = kept && alike(&c->run[kept - 1], &laid->run[0]);
    const int laid_runs = laid->runs - joined, rest = c->runs - last - 1, moved = kept + laid_runs;
    c->run = pass_room_for(p, c->run, &c->room, moved + rest, sizeof *c->run);
    if (moved != last + 1) memmove(&c->run[moved], &c->run[last + 1], (size_t)rest * sizeof *c->run);
    memcpy(&c->run[kept], laid->run + joined, (size_t)laid_runs * sizeof *c->run);
    c->runs = moved + rest;
}

void contents_fill(pass *p, contents *c, int64_t begin, int64_t end, int32_t number, int64_t shift) {
    if (begin == end) return;
    p->laid.run = pass_room_for(p, p->laid.run, &p->laid.room, 1, sizeof(run));
    p->laid.run[0] = (run){begin, number, number ? shift : 0}, p->laid.runs = 1;
    lay(p, c, begin, end, &p->laid);
}

void contents_move(pass *p, contents *to, int64_t at, const contents *from, int64_t begin, int64_t nbytes) {
    if (nbytes == 0) return;
    p->laid.runs = 0;
    for (int k = find(from, begin); k < from->runs && from->run[k].begin < begin + nbytes; k++) {
        const run *r = &from->run[k];
        const int64_t start = r->begin > begin ? r->begin : begin;
        add_run(p, &p->laid, (run){start - begin + at, r->term, r->term ? r->shift + begin - at : 0});
    }
    lay(p, to, at, at + nbytes, &p->laid);
}

/* Make bytes [0, nbytes) of `into` the fold of the sources' bytes, from the left, divided by `divisor`. */
void contents_fold(pass *p, contents *into, const contents *source, int sources, int64_t nbytes, int64_t divisor) {
    contents_begin(p, into);
    for (int64_t at = 0, end; at < nbytes; at = end) {
        run folded = {at, NOBODY, 0};
        end = nbytes;
        bool whole = true;
        for (int k = 0; k < sources; k++) {
            const int here = find(&source[k], at);
            const run *r = &source[k].run[here];
            if (here + 1 < source[k].runs && source[k].run[here + 1].begin < end) end = source[k].run[here + 1].begin;
            whole = whole && r->term != NOBODY;
            if (!whole) continue;
            if (k == 0) folded.term = r->term, folded.shift = r->shift;
            else folded.term = folded_with(p, folded.term, r->term, r->shift - folded.shift);
        }
        if (whole && divisor != 1) folded.term = divided(p, folded.term, divisor);
        contents_fill(p, into, at, end, whole ? folded.term : NOBODY, folded.shift);
    }
}

bool contents_in_elements(const pass *p, const contents *c, int64_t nbytes, int64_t each) {
    for (int k = 0; k < c->runs && c->run[k].begin < nbytes; k++)
        if (c->run[k].term != NOBODY && !opaque(p, c->run[k].term) && c->run[k].shift % each) return false;
    return true;
}

/* --- kernels --------------------------------------------------------------------------------------------------- */

int32_t term_of_compute(pass *p, event by) { return term_of(p, COMPUTED, 0, 0, (int64_t)by.stream << 32 | by.at); }

static int64_t end_of(const contents *c, int k, int64_t end) {
    return k + 1 < c->runs && c->run[k + 1].begin < end ? c->run[k + 1].begin : end;
}

bool contents_known(const contents *c, int64_t nbytes) {
    for (int k = 0; k < c->runs && c->run[k].begin < nbytes; k++)
        if (c->run[k].term == NOBODY) return false;
    return true;
}

bool contents_are(const contents *c, int64_t nbytes, int32_t number) {
    const run wanted = {0, number, 0};
    for (int k = 0; k < c->runs && c->run[k].begin < nbytes; k++)
        if (!alike(&c->run[k], &wanted)) return false;
    return true;
}

/* Return the checksum's term: the same for equal bytes, however their runs are cut, and different for all others. Real
 * checksums collide now and then, which this ignores. */
int32_t term_of_checksum(pass *p, const contents *c, int64_t begin, int64_t nbytes) {
    const int64_t end = begin + nbytes;
    int32_t sum = NOBODY;
    for (int k = find(c, begin); k < c->runs && c->run[k].begin < end; k++) {
        const run *r = &c->run[k];
        const int64_t stop = end_of(c, k, end);
        if (r->term == NOBODY) return NOBODY;
        if (stop < end && alike(r, r + 1)) continue;
        sum = term_of(p, CHECKED, sum, r->term, r->shift + begin);
        sum = term_of(p, UP_TO, sum, 0, stop - begin);
    }
    return sum;
}

/* Return the first opaque term among these bytes, or 0. */
static int32_t opaque_in(const pass *p, const contents *c, int64_t begin, int64_t nbytes) {
    for (int k = find(c, begin); k < c->runs && c->run[k].begin < begin + nbytes; k++)
        if (opaque(p, c->run[k].term)) return c->run[k].term;
    return 0;
}

/* Return the term of the columns that bytes [at, *end) of all rows of B make, one below the other: byte x of a row is byte
 * x + *shift of that term. *end becomes where the first run of any row ends. 0: some bytes were never written. */
static int32_t columns(pass *p, const contents *b, const matrix *rows, int64_t at, int64_t *end, int64_t *shift) {
    int32_t column = NOBODY;
    bool whole = true;
    for (int64_t row = 0, begin = 0; row < rows->rows; row++, begin += rows->nbytes) {
        const int k = find(b, begin + at);
        const run *r = &b->run[k];
        *end = end_of(b, k, begin + *end) - begin;
        whole = whole && r->term != NOBODY;
        if (row == 0) *shift = r->shift;
        if (whole)
            column = opaque(p, column)    ? column
                     : opaque(p, r->term) ? r->term
                                          : term_of(p, BELOW, column, r->term, begin + r->shift - *shift);
    }
    return whole ? column : NOBODY;
}

/* Make `into` the product of A and B, all three row after row. An element is the DOT of its row and its column, whichever
 * tile it was computed in. */
void contents_product(pass *p, contents *into, const contents *a, const contents *b, const kernel *k) {
    const matrix *c = &k->of[0], *of_a = &k->of[1], *of_b = &k->of[2];
    contents_begin(p, into);
    for (int64_t at = 0, end, shift = 0; at < c->nbytes; at = end) {
        end = c->nbytes;
        const int32_t column = columns(p, b, of_b, at, &end, &shift);
        for (int64_t row = 0; row < c->rows; row++) {
            const int64_t begin = row * of_a->nbytes;
            const int32_t line = term_of_checksum(p, a, begin, of_a->nbytes),
                          unknown = opaque_in(p, a, begin, of_a->nbytes);
            int32_t made = column && line ? term_of(p, DOT, line, column, k->unit) : NOBODY;
            if (made && (unknown || opaque(p, column))) made = unknown ? unknown : column;
            contents_fill(p, into, row * c->nbytes + at, row * c->nbytes + end, made, shift - row * c->nbytes);
        }
    }
}

/* --- a call's begin and end ------------------------------------------------------------------------------------ */

int32_t term_of_input(pass *p, int32_t call, int32_t rank, int buffer) { return term_of(p, GIVEN, call, rank, buffer); }

/* Whether two terms, from bytes `by` and `other_by` on, have the same bits: they are one term or, where the operation
 * commutes, differ in nothing but which operand is the left one. */
static bool same_bits(const pass *p, int32_t one, int64_t by, int32_t other, int64_t other_by, bool commutes) {
    if (one == other && by == other_by) return true;
    if (!one || !other || !commutes) return false;
    const term *a = &p->term[one], *b = &p->term[other];
    if (a->kind == DIVIDED && b->kind == DIVIDED)
        return a->by == b->by && same_bits(p, a->left, by, b->left, other_by, true);
    if (a->kind != FOLDED || b->kind != FOLDED) return false;
    const int64_t right = by + a->by, other_right = other_by + b->by;
    if (same_bits(p, a->right, right, b->right, other_right, true) &&
        same_bits(p, a->left, by, b->left, other_by, true))
        return true;
    return same_bits(p, a->right, right, b->left, other_by, true) &&
           same_bits(p, a->left, by, b->right, other_right, true);
}

/* The terms that a piece is folded from, and where in each of them its first byte lies. */
typedef struct {
    const int32_t *number;
    const int64_t *source; /* `words` words each, of which the second one is that place */
    int64_t count, words;
} contributions;

static int64_t along(const contributions *of, int64_t k) { return of->source[k * of->words + 1]; }

/* Return from how many contributions a term, from byte `by` on, is folded, each taken at most once; -1 where it is folded
 * from anything else, or from one of them twice. */
static int64_t folded_from(const pass *p, int32_t number, int64_t by, const contributions *of, bool *taken) {
    int64_t count = 0;
    for (; p->term[number].kind == FOLDED; number = p->term[number].left) {
        const int64_t right = folded_from(p, p->term[number].right, by + p->term[number].by, of, taken);
        if (right < 0) return -1;
        count += right;
    }
    for (int64_t k = 0; k < of->count; k++)
        if (number == of->number[k] && by == along(of, k) && !taken[k]) {
            taken[k] = true;
            return count + 1;
        }
    return -1;
}

/* Whether bytes from `at` on are folded from all contributions, in any order. `wanted` is their fold, whose byte `at` is byte
 * at + shift of the term: for equal terms equally far apart the answer is the same, and is kept. */
static bool folded_in_any_order(pass *p, const run *got, const run *wanted, int64_t divisor, const contributions *of,
                                int64_t at) {
    int32_t number = got->term;
    const term alike = {ALIKE, got->term, wanted->term, got->shift - wanted->shift};
    if (*number_of(p, &alike)) return true;
    if (divisor != 1) {
        if (p->term[number].kind != DIVIDED || p->term[number].by != divisor) return false;
        number = p->term[number].left;
    }
    bool *taken = pass_zeroed(p, (size_t)of->count, sizeof *taken);
    const int64_t found = folded_from(p, number, got->shift + at, of, taken);
    free(taken);
    if (found == of->count) term_of(p, alike.kind, alike.left, alike.right, alike.by);
    return found == of->count;
}

/* Return the term of a row of one rank's A times the columns of another rank's B. */
static int32_t product_term(pass *p, int32_t call, const int64_t *of) {
    int32_t row = term_of(p, CHECKED, NOBODY, term_of_input(p, call, (int32_t)of[0], 0), of[2]), column = NOBODY;
    row = term_of(p, UP_TO, row, 0, of[3]);
    const int32_t b = term_of_input(p, call, (int32_t)of[4], (int)of[5]);
    for (int64_t k = 0; k < of[6]; k++) column = term_of(p, BELOW, column, b, k * of[7]);
    return term_of(p, DOT, row, column, of[8]);
}

static int32_t contributed(pass *p, int32_t call, const int64_t *of, int64_t words) {
    return words == PRODUCT_WORDS ? product_term(p, call, of) : term_of_input(p, call, (int32_t)of[0], 0);
}

/* Return the term of contributions [first, end), folded from the left. */
static int32_t fold_of(pass *p, const contributions *of, int64_t first, int64_t end) {
    int32_t sum = of->number[first];
    for (int64_t k = first + 1; k < end; k++)
        sum = term_of(p, FOLDED, sum, of->number[k], along(of, k) - along(of, first));
    return sum;
}

/* Return the term that the contract declares: groups of `apart` contributions, each folded from the left, and then these
 * results from the left. */
static int32_t ordered_fold(pass *p, const contributions *of, int64_t apart, int64_t divisor) {
    int32_t sum = fold_of(p, of, 0, apart);
    for (int64_t k = apart; k < of->count; k += apart)
        sum = term_of(p, FOLDED, sum, fold_of(p, of, k, k + apart < of->count ? k + apart : of->count),
                      along(of, k) - along(of, 0));
    return divisor == 1 ? sum : term_of(p, DIVIDED, sum, 0, divisor);
}

/* Return the first of bytes [begin, end) of c that is folded in another way than the first holder of the same result folded
 * it, whose byte x is byte x - shift of c; -1 where there is no such byte, or this is the first holder. */
static int64_t held_otherwise(pass *p, int32_t wanted, const contents *c, int64_t begin, int64_t end, int64_t shift,
                              bool commutes) {
    holding *h = NULL;
    for (int k = 0; k < p->holdings && !h; k++)
        if (p->held[k].wanted == wanted && p->held[k].first == begin + shift) h = &p->held[k];
    if (!h) {
        p->held = pass_room_for(p, p->held, &p->held_room, p->holdings + 1, sizeof *p->held);
        h = &p->held[p->holdings];
        *h = (holding){wanted, begin + shift, {0}};
        p->holdings++; /* counted before it has contents, so that it is freed also where these find no memory */
        contents_begin(p, &h->got);
        contents_move(p, &h->got, begin + shift, c, begin, end - begin);
        return -1;
    }
    for (int64_t at = begin; at < end;) {
        const int here = find(c, at), there = find(&h->got, at + shift);
        const run *one = &c->run[here], *other = &h->got.run[there];
        if (!same_bits(p, one->term, one->shift - shift, other->term, other->shift, commutes)) return at;
        const int64_t stop = end_of(&h->got, there, end + shift) - shift;
        at = end_of(c, here, stop);
    }
    return -1;
}

/* contract and fold_order: every byte of a rank's output is folded from the contributions that the contract says, in its
 * order. A contract is a list of pieces of the output, each PIECE_WORDS words and then its contributions:
 *
 *   piece         at, bytes, divisor, number of contributions, words of each, and how many contributions are folded apart
 *                 (0: all in any order, but in the same one wherever the result is held)
 *   contribution  rank, offset in that rank's input
 *   of a product  rank, offset of the columns, where the row of A begins, bytes of the row; then of B: rank, buffer, rows,
 *                 bytes from row to row; unit
 *
 * Byte 0 of the output is byte `base` of c. */
void contents_check_contract(pass *p, int32_t rank, const contents *c, int64_t base, const int64_t *piece,
                             int64_t words) {
    const bool contract = !(p->without >> CONTRACT & 1), order = !(p->without >> FOLD_ORDER & 1);
    const bool commutes = p->plan[p->plan_of[p->call[rank]]].commutes;
    const event last = {(uint32_t)(rank * p->per_rank), p->now[rank * p->per_rank]};
    for (const int64_t *end = piece + words; piece < end; piece += PIECE_WORDS + piece[3] * piece[4]) {
        const int64_t at = piece[0], nbytes = piece[1], divisor = piece[2], ordered = piece[5];
        p->contribution = pass_room_for(p, p->contribution, &p->contribution_room, (int)piece[3],
                                        sizeof *p->contribution);
        const contributions of = {p->contribution, piece + PIECE_WORDS, piece[3], piece[4]};
        for (int64_t k = 0; k < of.count; k++)
            p->contribution[k] = contributed(p, p->call[rank], of.source + k * of.words, of.words);
        const int32_t wanted = ordered_fold(p, &of, ordered ? ordered : 1, divisor);
        const run expected = {0, wanted, of.source[1] - at - base};
        for (int k = find(c, base + at); k < c->runs && c->run[k].begin < base + at + nbytes; k++) {
            const run *got = &c->run[k];
            const int64_t first = got->begin > base + at ? got->begin - base : at;
            if (same_bits(p, got->term, got->shift, wanted, expected.shift, commutes)) continue;
            if (got->term && folded_in_any_order(p, got, &expected, divisor, &of, base + at)) {
                if (ordered && order) pass_violated(p, FOLD_ORDER, PLAIN, last, (event){0, 0}, -1, first);
                continue;
            }
            if (!contract) continue;
            if (opaque(p, got->term)) {
                const int64_t by = p->term[got->term].by;
                if (!p->computed.at) p->computed = (event){(uint32_t)(by >> 32), (uint32_t)by};
                continue;
            }
            pass_violated(p, CONTRACT, got->term ? PLAIN : UNWRITTEN, last, (event){0, 0}, -1, first);
        }
        if (ordered || !order) continue;
        const int64_t other = held_otherwise(p, wanted, c, base + at, base + at + nbytes, expected.shift, commutes);
        if (other >= 0) pass_violated(p, FOLD_ORDER, PLAIN, last, (event){0, 0}, -1, other - base);
    }
}
