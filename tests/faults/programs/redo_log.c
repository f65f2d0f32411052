/* Transfers between two accounts by a redo log: the new balances are logged, then stored, and a restart stores them again.
 * -DBUG: the balances are not flushed before the log is given up. */
#include "../../../examples/programs/pool.h"

enum { LINE = 64, TRANSFERS = 2 };

typedef struct {
    uint64_t logged[2]; /* the balances after */
    char rest[LINE - 16];
    volatile uint64_t valid;
    char more[LINE - 8];
    struct {
        volatile uint64_t balance; /* modulo 2^64: both together are 0 */
        char rest[LINE - 8];
    } account[2];
} bank;

static void set_valid(bank *b, uint64_t valid) {
    b->valid = valid;
    publish(&b->valid, LINE);
}

static void apply(bank *b) {
    for (int k = 0; k < 2; k++) b->account[k].balance = b->logged[k];
}

static void transfer(bank *b, uint64_t amount) {
    b->logged[0] = b->account[0].balance - amount, b->logged[1] = b->account[1].balance + amount;
    publish(b->logged, LINE);
    set_valid(b, 1);
    apply(b);
#ifndef BUG
    publish(b->account, sizeof b->account);
#endif
    set_valid(b, 0);
}

int main(int count, char **words) {
    bank *b = map_pool("/dev/shm/bank", sizeof *b);
    if (count != 2 || strcmp(words[1], "recover")) {
        for (uint64_t k = 1; k <= TRANSFERS; k++) transfer(b, k);
        return 0;
    }
    refresh(b, sizeof *b);
    if (b->valid) {
        apply(b);
        publish(b->account, sizeof b->account);
        set_valid(b, 0);
    }
    if (b->account[0].balance + b->account[1].balance) fail("money was lost");
    return 0;
}
