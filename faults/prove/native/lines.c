/* Segments of lines with equal histories. An access first splits the segments and cells that it touches in part, so that it
 * then works on whole ones. */
#include "pass.h"

#include <stdlib.h>
#include <string.h>

static void cell_copy(pass *p, cell *to, const cell *from) {
    *to = *from;
    to->write = NULL, to->reader = NULL, to->write_room = to->reader_room = 0, to->writes = to->readers = 0;
    to->write = pass_room_for(p, NULL, &to->write_room, from->writes, sizeof *to->write);
    to->reader = pass_room_for(p, NULL, &to->reader_room, from->readers, sizeof *to->reader);
    if (from->writes) memcpy(to->write, from->write, (size_t)from->writes * sizeof *to->write);
    if (from->readers) memcpy(to->reader, from->reader, (size_t)from->readers * sizeof *to->reader);
    to->writes = from->writes, to->readers = from->readers;
    for (int w = 0; w < to->writes; w++)
        for (int k = 0; k < to->write[w].drains; k++) drain_keep(to->write[w].by[k]);
}

static void cell_free(cell *c) {
    while (c->writes) cell_drop_write(c, c->writes - 1);
    free(c->write);
    free(c->reader);
}

static void segment_free(segment *s) {
    for (int k = 0; k < s->cells; k++) cell_free(&s->cell[k]);
    for (int k = 0; k < s->drops; k++) drain_drop(s->drop[k]);
    free(s->cell);
    free(s->drop);
}

/* Return the index of the segment that holds the line. */
static int find(const map *m, int64_t line) {
    int low = 0, high = m->segments;
    while (high - low > 1) {
        const int middle = low + (high - low) / 2;
        if (m->segment[middle].first <= line) low = middle;
        else high = middle;
    }
    return low;
}

/* Make a segment begin at this line, and return its index. */
static int split(pass *p, map *m, int64_t line) {
    const int at = find(m, line);
    if (m->segment[at].first == line) return at;
    m->segment = pass_room_for(p, m->segment, &m->room, m->segments + 1, sizeof *m->segment);
    segment *low = &m->segment[at], copy = {.first = line, .end = low->end};
    copy.cell = pass_zeroed(p, (size_t)low->cells, sizeof *copy.cell);
    for (; copy.cells < low->cells; copy.cells++) cell_copy(p, &copy.cell[copy.cells], &low->cell[copy.cells]);
    copy.drop = pass_room_for(p, NULL, &copy.drop_room, low->drops, sizeof *copy.drop);
    for (; copy.drops < low->drops; copy.drops++) copy.drop[copy.drops] = drain_keep(low->drop[copy.drops]);
    low->end = line;
    memmove(low + 2, low + 1, (size_t)(m->segments - at - 1) * sizeof *low);
    low[1] = copy;
    m->segments++;
    return at + 1;
}

/* Make a cell begin at this byte of the segment, which is a single line. */
static void split_line(pass *p, segment *s, uint8_t byte) {
    int at = 0;
    while (s->cell[at].end <= byte) at++;
    if (s->cell[at].begin == byte) return;
    cell *more = realloc(s->cell, (size_t)(s->cells + 1) * sizeof *more);
    if (!more) longjmp(p->stop, NO_MEMORY);
    s->cell = more;
    cell copy;
    cell_copy(p, &copy, &more[at]);
    memmove(&more[at + 2], &more[at + 1], (size_t)(s->cells - at - 1) * sizeof *more);
    more[at + 1] = copy;
    more[at].end = more[at + 1].begin = byte;
    s->cells++;
}

/* Make bytes [begin, end) whole cells of whole segments, and return which segments these are. */
range map_open_range(pass *p, map *m, int64_t begin, int64_t end) {
    const int64_t first = begin / LINE_BYTES, last = (end - 1) / LINE_BYTES;
    range r = {split(p, m, first), 0, begin, end};
    if (begin % LINE_BYTES) {
        split(p, m, first + 1);
        split_line(p, &m->segment[r.at], (uint8_t)(begin % LINE_BYTES));
    }
    r.end = split(p, m, last + 1);
    if (end % LINE_BYTES) {
        const int at = split(p, m, last);
        r.end = at + 1;
        split_line(p, &m->segment[at], (uint8_t)(end % LINE_BYTES));
    }
    return r;
}

void map_bytes_in(const range *r, const segment *s, int *begin, int *end) {
    *begin = s->first == r->begin_byte / LINE_BYTES ? (int)(r->begin_byte % LINE_BYTES) : 0;
    *end = s->end * LINE_BYTES > r->end_byte ? (int)(r->end_byte % LINE_BYTES) : LINE_BYTES;
}

void cell_add_reader(pass *p, cell *c, event e) {
    int low = 0, high = c->readers; /* in the order of their streams */
    while (low < high) {
        const int middle = low + (high - low) / 2;
        if (c->reader[middle].stream < e.stream) low = middle + 1;
        else high = middle;
    }
    if (low == c->readers || c->reader[low].stream != e.stream) {
        c->reader = pass_room_for(p, c->reader, &c->reader_room, c->readers + 1, sizeof *c->reader);
        memmove(&c->reader[low + 1], &c->reader[low], (size_t)(c->readers++ - low) * sizeof e);
    }
    c->reader[low] = e;
}

void cell_add_write(pass *p, cell *c, event e, bool nt) {
    c->write = pass_room_for(p, c->write, &c->write_room, c->writes + 1, sizeof *c->write);
    c->write[c->writes++] = (stored){.at = e, .nt = nt};
}

void cell_drop_write(cell *c, int at) {
    for (int k = 0; k < c->write[at].drains; k++) drain_drop(c->write[at].by[k]);
    memmove(&c->write[at], &c->write[at + 1], (size_t)(--c->writes - at) * sizeof *c->write);
}

/* Whether a drop has become useless: a later one of the same host is complete for all that this host's streams do next. */
static bool outdone(const pass *p, const drain *old, const drain *by) {
    if (!clock_before(old->from.self, &by->from)) return false;
    uint32_t s = by->from.self.stream;
    do {
        const point q = clock_now(p, s);
        if (!drain_is_fenced(by, &q)) return false;
        s = p->neighbour[s];
    } while (s != by->from.self.stream);
    return true;
}

/* Return the index of a host's first drop: drops are in the order of their hosts, and each host's in that of time. */
int segment_drops_of(const segment *s, int32_t host) {
    int low = 0, high = s->drops;
    while (low < high) {
        const int middle = low + (high - low) / 2;
        if (s->drop[middle]->host < host) low = middle + 1;
        else high = middle;
    }
    return low;
}

void segment_add_drop(pass *p, segment *s, drain *d) {
    const int first = segment_drops_of(s, d->host);
    int end = first, kept = first;
    while (end < s->drops && s->drop[end]->host == d->host) end++;
    for (int k = first; k < end; k++) {
        bool useless = false;
        for (int other = k + 1; other < end && !useless; other++) useless = outdone(p, s->drop[k], s->drop[other]);
        if (useless) drain_drop(s->drop[k]);
        else s->drop[kept++] = s->drop[k];
    }
    s->drop = pass_room_for(p, s->drop, &s->drop_room, s->drops + 1, sizeof *s->drop);
    memmove(&s->drop[kept + 1], &s->drop[end], (size_t)(s->drops - end) * sizeof *s->drop);
    s->drop[kept] = drain_keep(d);
    s->drops += kept + 1 - end;
}

/* Forget the drops of calls that are over, where a step has stored to all bytes: they came before it, so that no reader of
 * what it stored can rely on them. */
static void forget_drops(const pass *p, segment *s) {
    int kept = 0;
    for (int k = 0; k < s->drops; k++) {
        const drain *d = s->drop[k];
        const uint32_t began = p->began[(int64_t)p->call[d->rank] * p->streams + d->from.self.stream];
        if (p->begun[d->rank] && d->from.self.at > began) s->drop[kept++] = s->drop[k];
        else drain_drop(s->drop[k]);
    }
    s->drops = kept;
}

/* Whether nothing but this step's store is known of any byte. */
static bool only_stored(const segment *s, event e) {
    for (const cell *c = s->cell; c < s->cell + s->cells; c++)
        if (c->readers || c->spoil.rule != NO_RULE || c->writes != 1 || c->write[0].drains ||
            c->write[0].at.stream != e.stream || c->write[0].at.at != e.at)
            return false;
    return true;
}

/* Join what has one history now that a step has stored to these lines. */
void map_join(pass *p, map *m, const range *r, event by) {
    int kept = r->at - 1;
    bool joins = false; /* the segment before this one */
    for (int k = r->at; k < r->end; k++) {
        segment *s = &m->segment[k];
        const bool alone = only_stored(s, by);
        if (alone) forget_drops(p, s);
        const bool plain = alone && !s->drops;
        if (plain && joins) {
            m->segment[kept].end = s->end;
            segment_free(s);
            continue;
        }
        while (plain && s->cells > 1) cell_free(&s->cell[--s->cells]);
        if (plain) s->cell[0].end = LINE_BYTES;
        m->segment[++kept] = *s, joins = plain;
    }
    memmove(&m->segment[kept + 1], &m->segment[r->end], (size_t)(m->segments - r->end) * sizeof *m->segment);
    m->segments -= r->end - kept - 1;
}

void map_begin(pass *p, map *m) {
    m->segment = pass_room_for(p, m->segment, &m->room, 1, sizeof *m->segment);
    segment all = {.first = 0, .end = INT64_MAX / LINE_BYTES, .cells = 1};
    all.cell = pass_zeroed(p, 1, sizeof *all.cell);
    all.cell[0] = (cell){.end = LINE_BYTES, .spoil = {NO_RULE, {0, 0}}};
    m->segment[0] = all;
    m->segments = 1;
}

void map_free(map *m) {
    for (int k = 0; k < m->segments; k++) segment_free(&m->segment[k]);
    free(m->segment);
    *m = (map){0};
}
