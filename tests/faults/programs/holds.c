/* What must hold, each way once.   holds WHAT [HOST] */
#include "pool.h"

enum { LINE = 64 };

typedef struct {
    volatile uint64_t data;
    char rest[LINE - 8];
    volatile uint64_t flag;
    char more[LINE - 8];
} message;

static int data_comes_first(const void *bytes) {
    const message *m = bytes;
    return !m->flag || m->data == m->flag;
}

static int is_zero(const void *bytes) { return *(const volatile uint64_t *)bytes == 0; }

static int are_equal(const void *bytes) { return memcmp(bytes, (const char *)bytes + 8, 8) == 0; }
static int is_not_two(const void *bytes) { return *(const volatile uint64_t *)bytes != 2; }

static void send(message *m, uint64_t value, int fence) {
    m->data = value;
    cxl_flush(&m->data, LINE);
    if (fence) cxl_fence();
    m->flag = value;
    publish(&m->flag, LINE);
}

int main(int count, char **words) {
    const char *what = count > 1 ? words[1] : "";
    const int host = count > 2 && words[2][0] == '1';
    if (strcmp(what, "early") == 0) cxl_linearizable(CXL_REGISTER); /* before the pool is opened */
    if (strcmp(what, "partly") == 0) cxl_linearizable(CXL_REGISTER | CXL_QUEUE | CXL_MAP);
    message *m = map_pool("/dev/shm/holds", sizeof *m);
    if (strcmp(what, "assert") == 0) {
        m->data = 1;
        publish(&m->data, LINE);
        cxl_assert(m->data == 1);
        cxl_assert(m->data == 2);
    } else if (strcmp(what, "invariant") == 0 || strcmp(what, "no-fence") == 0) {
        cxl_invariant(m, sizeof *m, data_comes_first);
        for (uint64_t k = 1; k <= 2 && !host; k++) send(m, 2, what[0] == 'i');
    } else if (strcmp(what, "cached") == 0) { /* a cache breaks it, and the pool never does */
        cxl_invariant(m, sizeof *m, data_comes_first);
        m->flag = 1, m->data = 1;
        publish(&m->data, LINE);
        publish(&m->flag, LINE);
    } else if (strcmp(what, "together") == 0) { /* one fence lands both lines */
        cxl_invariant(&m->flag, sizeof m->flag, is_zero);
        m->data = 1, m->flag = 1;
        publish(m, sizeof *m);
    } else if (strcmp(what, "halves") == 0) { /* of one line, which may leave between the stores */
        cxl_invariant(m, 16, are_equal);
        (&m->data)[0] = 1, (&m->data)[1] = 1;
        publish(m, LINE);
    } else if (strcmp(what, "copy") == 0) {
        const uint64_t words[8] = {1, 1};
        cxl_invariant(m, 16, are_equal);
        memcpy(m, words, sizeof words);
        publish(m, LINE);
    } else if (strcmp(what, "order") == 0) { /* the flag's line may leave before the data's is flushed */
        cxl_invariant(m, sizeof *m, data_comes_first);
        if (!host) m->data = 1, m->flag = 1;
        if (!host) publish(&m->data, LINE), publish(&m->flag, LINE);
    } else if (strcmp(what, "posted") == 0) {
        cxl_invariant(&m->data, 8, is_zero);
        m->data = 1;
        cxl_flush(&m->data, 8);
    } else if (strcmp(what, "again") == 0) { /* the 2 may leave once the 1 has arrived */
        cxl_invariant(&m->data, 8, is_not_two);
        m->data = 1;
        cxl_flush(&m->data, 8);
        m->data = 2;
        m->data = 3;
        publish(&m->data, 8);
    } else if (strcmp(what, "declared") == 0) { /* behind what breaks it */
        for (uint64_t k = 2; k-- && !host;) m->data = k, publish(&m->data, 8);
        cxl_invariant(&m->data, 8, is_zero);
    } else if (strcmp(what, "left") == 0) { /* in the cache */
        m->data = 1;
        m->data = 0;
        cxl_invariant(&m->data, 8, is_zero);
        publish(&m->data, 8);
    } else if (strcmp(what, "nobody") == 0) { /* the host that stores has not declared it */
        if (host) cxl_invariant(m, sizeof *m, data_comes_first);
        else send(m, 1, 1);
    } else if (strcmp(what, "late") == 0) { /* the value is on its way when its writer says that it is stored */
        cxl_linearizable(CXL_REGISTER);
        if (host) {
            cxl_op_begin(CXL_OP_READ, 0, 0);
            refresh(&m->data, LINE);
            cxl_op_end(m->data);
        } else {
            cxl_op_begin(CXL_OP_WRITE, 0, 1);
            m->data = 1;
            cxl_op_end(1);
            publish(&m->data, LINE);
        }
    } else if (strcmp(what, "early") == 0) {
        send(m, 1, 1);
    } else if (strcmp(what, "unasked") == 0 || strcmp(what, "partly") == 0) {
        send(m, 1, 1);
        cxl_op_begin(CXL_OP_PUT, 0, 1);
        cxl_op_end(1);
    } else if (strcmp(what, "twice") == 0) {
        cxl_op_begin(CXL_OP_PUT, 0, 1);
        cxl_op_begin(CXL_OP_PUT, 0, 1);
    } else if (strcmp(what, "end") == 0) {
        cxl_op_end(1);
    } else if (strcmp(what, "outside") == 0) {
        cxl_invariant(&m, sizeof m, data_comes_first);
    }
    return 0;
}
