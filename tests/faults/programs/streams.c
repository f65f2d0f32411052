/* Copies in CUDA's streams: what comes before what. streams WHAT */
#include "words.h"

#include <cuda_runtime.h>

enum { LINE = 64, MANY = 60 };

typedef struct {
    word flag, first, second, many[MANY];
} shared;

static const uint64_t one = 1, two = 2;
static uint64_t back;
static cudaStream_t a, b, free_one;
static cudaEvent_t event;

static void copy(word *to, const uint64_t *from, cudaStream_t stream) {
    cudaMemcpyAsync((void *)(uintptr_t)&to->it, from, sizeof *from, cudaMemcpyDefault, stream);
}

/* Only the last copy of a line counts. */
static void check(const word *w, uint64_t value) {
    if (w->it != value) fail("a copy is not in its order");
}

static void in_order(shared *s) {
    copy(&s->first, &one, a);
    copy(&s->first, &two, a);
    cudaStreamSynchronize(a);
    check(&s->first, 2);
}

static void one_to_the_other(shared *s) {
    copy(&s->first, &two, a);
    cudaMemcpyAsync((void *)(uintptr_t)&s->second.it, (void *)(uintptr_t)&s->first.it, sizeof two, cudaMemcpyDefault,
                    a);
    cudaStreamSynchronize(a);
    check(&s->second, 2);
}

static void two_streams(shared *s) {
    copy(&s->first, &one, a);
    copy(&s->first, &two, b);
    cudaDeviceSynchronize();
}

static void other_stream_waited(shared *s) {
    copy(&s->first, &one, a);
    cudaStreamSynchronize(b);
    back = s->first.it;
    cudaStreamSynchronize(a);
}

static void stream_waits(shared *s) {
    copy(&s->first, &one, a);
    cudaEventRecord(event, a);
    cudaStreamWaitEvent(b, event, 0);
    copy(&s->first, &two, b);
    cudaStreamSynchronize(b); /* and so for the other one */
    check(&s->first, 2);
}

static void event_between(shared *s, int too_early) {
    copy(&s->first, &one, a);
    cudaEventRecord(event, a);
    copy(&s->second, &two, a);
    cudaEventSynchronize(event);
    check(&s->first, 1);
    if (too_early) back = s->second.it;
    cudaStreamSynchronize(a);
    check(&s->second, 2);
}

static void default_stream(shared *s, cudaStream_t beside) {
    copy(&s->first, &one, beside);
    cudaMemcpy((void *)(uintptr_t)&s->first.it, &two, sizeof two, cudaMemcpyDefault);
    if (beside == a) check(&s->first, 2);
    cudaStreamSynchronize(beside);
}

static void behind_the_default(shared *s) {
    copy(&s->first, &one, 0);
    copy(&s->first, &two, a);
    cudaStreamSynchronize(a);
    check(&s->first, 2);
}

static void filled(shared *s) {
    cudaMemsetAsync((void *)(uintptr_t)&s->first.it, 1, sizeof s->first.it, 0);
    while (cudaStreamQuery(0) == cudaErrorNotReady);
    check(&s->first, UINT64_C(0x0101010101010101));
    cudaMemset((void *)(uintptr_t)&s->first.it, 0, sizeof s->first.it);
    check(&s->first, 0);
}

static void many(shared *s) {
    for (int k = 0; k < MANY; k++) copy(&s->many[k], k % 2 ? &two : &one, a);
    cudaEventRecord(event, a);
    while (cudaEventQuery(event) == cudaErrorNotReady);
    for (int k = 0; k < MANY; k++) check(&s->many[k], k % 2 ? 2 : 1);
}

static void freed(shared *s) {
    uint64_t *on_gpu;
    if (cudaMalloc((void **)&on_gpu, sizeof *on_gpu)) fail("no memory");
    copy(&s->first, &one, a);
    cudaFree(on_gpu);
    check(&s->first, 1);
}

int main(int count, char **words) {
    shared *s = map_pool("/dev/shm/streams", sizeof *s);
    const char *what = count == 2 ? words[1] : "";
    cudaStreamCreate(&a), cudaStreamCreate(&b), cudaStreamCreateWithFlags(&free_one, cudaStreamNonBlocking);
    cudaEventCreate(&event);
    if (!strcmp(what, "in-order")) in_order(s);
    else if (!strcmp(what, "one-to-the-other")) one_to_the_other(s);
    else if (!strcmp(what, "two-streams")) two_streams(s);
    else if (!strcmp(what, "other-stream-waited")) other_stream_waited(s);
    else if (!strcmp(what, "stream-waits")) stream_waits(s);
    else if (!strcmp(what, "event-between")) event_between(s, 0);
    else if (!strcmp(what, "behind-the-event")) event_between(s, 1);
    else if (!strcmp(what, "default-stream")) default_stream(s, a);
    else if (!strcmp(what, "beside-the-default")) default_stream(s, free_one);
    else if (!strcmp(what, "behind-the-default")) behind_the_default(s);
    else if (!strcmp(what, "filled")) filled(s);
    else if (!strcmp(what, "many")) many(s);
    else if (!strcmp(what, "freed")) freed(s);
    else fail("streams WHAT");
    publish(&s->first, strcmp(what, "many") ? 2 * sizeof(word) : (MANY + 2) * sizeof(word));
    return 0;
}
