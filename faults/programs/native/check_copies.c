/* Copies by devices: each is a store that may happen at any time, until a thread of the host has seen its event. */
#include "check.h"

uint32_t copy_open_number(check_line *line, int thread) {
    for (uint32_t number = 1; number <= WRITES; number++) {
        const check_write *w = line_write(line, number);
        if (w && w->state & WRITE_OPEN && w->thread == thread) return number;
    }
    return 0;
}

/* A device may write from now on, so its host claims to do so. */
void copy_begins(const program_step *step) {
    check_thread *device = &room_now()->thread[step->other];
    device->copy.asked = time_of(step), device->copy.seen = 0, device->copy.pool = step->pool;
    device->copy.offset = step->offset, device->copy.nbytes = inside(step) ? step->nbytes : 0;
    room_now()->open_copies++;
    if (!inside(step)) return;
    EACH_LINE(step, t) {
        if (t.coherent) continue;
        const unsigned words = words_of(step, t.number);
        store_beside(&t, words);
        check_write *w = line_slot(t.line, line_add(t.line));
        *w = (check_write){
            .time = time_of(step),
            .site = (uint16_t)step->site,
            .host = step->host & 15U,
            .state = WRITE_OPEN,
            .thread = (uint8_t)step->other,
        };
        write_bytes(w, words, touched_bytes(&t));
    }
}

/* The event of a device's copy is seen: the write is its host's like any other, and the fences of the thread that has seen it await
 * what it has posted. */
void copy_seen(const program_step *step) {
    check_thread *device = &room_now()->thread[step->other];
    const program_step its = {.pool = device->copy.pool, .offset = device->copy.offset, .nbytes = device->copy.nbytes};
    device->copy.seen = time_of(step);
    room_now()->open_copies--;
    EACH_LINE(&its, t) {
        const uint32_t number = copy_open_number(t.line, step->other);
        if (number) line_slot(t.line, number)->state &= (uint8_t)~WRITE_OPEN;
    }
    while (device->flushes) {
        check_node *node = room_at(device->flushes);
        const uint32_t next = node->next;
        node->next = thread_of(step)->flushes, thread_of(step)->flushes = device->flushes, device->flushes = next;
    }
}

/* A device dies with its host, whose threads can wait for nothing any more: its write happened, in part or not, like any other. */
void copy_dies(check_write *w) {
    check_thread *device = &room_now()->thread[w->thread];
    if (!(w->state & WRITE_OPEN)) return;
    w->state &= (uint8_t)~WRITE_OPEN;
    if (!device->copy.seen) device->copy.seen = room_now()->host[w->host].crashed, room_now()->open_copies--;
}
