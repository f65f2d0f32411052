/* The checker alone, on streams of events that a test makes up: its storage, and what it finds. */
#include "check.h"

#include <stdlib.h>
#include <string.h>

enum { POOLS = 2, LINES = 4096, ROOM = 1 << 26 };

static program_finding found[PROGRAM_FINDINGS];
static uint32_t count;

uint8_t *program_watcher_lines[PROGRAM_POOLS], *program_watcher_room;

void program_report(const program_finding *f) {
    for (uint32_t k = 0; k < count; k++)
        if (found[k].kind == f->kind && found[k].rule == f->rule &&
            memcmp(found[k].sites, f->sites, sizeof f->sites) == 0) {
            found[k].times += f->times;
            return;
        }
    if (count == PROGRAM_FINDINGS) return;
    found[count++] = *f;
}

void program_watched(uint64_t touched, uint64_t bytes) { (void)touched, (void)bytes; }
bool program_failed(void) { return false; }
bool device_is_before(int first, int then) {
    (void)first, (void)then;
    return false;
}

bool program_coherent_anywhere;
bool program_coherent(int pool, int64_t line) {
    (void)pool, (void)line;
    return false;
}

void test_begin(void) {
    for (int k = 0; k < POOLS; k++) {
        free(program_watcher_lines[k]);
        program_watcher_lines[k] = calloc(LINES, WATCHER_LINE_BYTES);
    }
    free(program_watcher_room), program_watcher_room = calloc(1, ROOM);
    count = 0;
}

void test_load(const program_step *step, const uint8_t *bytes) { checker.load(step, bytes); }
void test_store(const program_step *step, const uint8_t *before, const uint8_t *after) {
    checker.store(step, before, after);
}
void test_flush(const program_step *step, int was_dirty) { checker.flush(step, was_dirty, true); }
void test_fence(const program_step *step) { checker.fence(step); }
void test_other(const program_step *step) { checker.other(step); }
void test_move(const program_move *move) { checker.move(move); }
void test_end(void) { checker.end(); }
void test_stuck(void) { checker.stuck(); }
void test_tell(void) { rule_tell_all(); }
uint32_t test_findings(const program_finding **into) {
    *into = found;
    return count;
}
void test_fill(void) { room_now()->used = (uint32_t)(WATCHER_ROOM_BYTES / 16); }
/* Bytes of the room that hold more of lines, and are not the same for every run. */
/* Of lines, beyond what each has from the first on. */
uint32_t test_bytes_more(void) { return (room_now()->chunks - room_now()->lines) * (uint32_t)sizeof(check_line); }
