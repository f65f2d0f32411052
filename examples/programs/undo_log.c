/* Transfers between two accounts that a crash must not tear: an undo log. The balances are logged before they change, and a
 * restart puts back what is in the log.
 * -DBUG: the log is not flushed, and may not have arrived when it is needed.
 *
 *     cxlemu cc -O2 -g undo_log.c -o undo_log
 *     cxlemu exec --pool /dev/shm/bank --crash every -- ./undo_log transfer :: ./undo_log recover */
#include "pool.h"

enum { LINE = 64, TRANSFERS = 2 };

typedef struct {
    uint64_t logged[2]; /* the balances before */
    char rest[LINE - 16];
    volatile uint64_t valid; /* whether they count: stored last, in a line of its own */
    char more[LINE - 8];
    struct {
        volatile uint64_t balance; /* modulo 2^64: all of them together are 0 */
        char rest[LINE - 8];
    } account[2];
} bank;

static void set_valid(bank *b, uint64_t valid) {
    b->valid = valid;
    publish(&b->valid, LINE);
}

static void transfer(bank *b, uint64_t amount) {
    for (int k = 0; k < 2; k++) b->logged[k] = b->account[k].balance;
#ifndef BUG
    publish(b->logged, LINE);
#endif
    set_valid(b, 1);
    b->account[0].balance -= amount;
    b->account[1].balance += amount;
    publish(b->account, sizeof b->account);
    set_valid(b, 0);
}

static void recover(bank *b) {
    refresh(b, sizeof *b);
    if (b->valid) {
        for (int k = 0; k < 2; k++) b->account[k].balance = b->logged[k];
        publish(b->account, sizeof b->account);
        set_valid(b, 0);
    }
    if (b->account[0].balance + b->account[1].balance) fail("money was lost");
}

int main(int count, char **words) {
    bank *b = map_pool("/dev/shm/bank", sizeof *b);
    if (count == 2 && strcmp(words[1], "recover") == 0) recover(b);
    else
        for (uint64_t k = 1; k <= TRANSFERS; k++) transfer(b, k);
    return 0;
}
