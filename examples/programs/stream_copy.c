/* A GPU of host 0 copies a message to the pool in a stream, and one of host 1 copies it from there. No GPU is needed.
 * Three mistakes: -DEARLY publishes the message before the stream's event was waited for, -DUNFLUSHED leaves it in the cache of the
 * GPU's host, and -DSTALE has host 1's GPU read what the cache of its host still holds.
 *
 *     cxlemu cc -O2 -g stream_copy.c -o streams -lcudart */
#include "words.h"

#include <cuda_runtime.h>

enum { WORDS = 8, VALUE = 7 };

typedef struct {
    word flag;
    uint64_t words[WORDS];
} message;

static void send(message *m) {
    uint64_t words[WORDS], *on_gpu;
    cudaStream_t stream;
    cudaEvent_t copied;
    for (int k = 0; k < WORDS; k++) words[k] = VALUE;
    cudaStreamCreate(&stream);
    cudaEventCreate(&copied);
    cudaMalloc((void **)&on_gpu, sizeof words);
    cudaMemcpyAsync(on_gpu, words, sizeof words, cudaMemcpyHostToDevice, stream);
    cudaMemcpyAsync(m->words, on_gpu, sizeof words, cudaMemcpyDeviceToHost, stream); /* behind the copy before */
    cudaEventRecord(copied, stream);
#ifndef EARLY
    cudaEventSynchronize(copied);
#endif
#ifdef UNFLUSHED
    cxl_fence();
#else
    publish(m->words, sizeof words);
#endif
    set(&m->flag, 1);
    cudaFree(on_gpu); /* once everything has ended */
}

static void receive(message *m) {
    uint64_t words[WORDS] = {0};
    while (!get(&m->flag));
#ifndef STALE
    refresh(m->words, sizeof words);
#endif
    cudaMemcpy(words, m->words, sizeof words, cudaMemcpyHostToHost);
    for (int k = 0; k < WORDS; k++)
        if (words[k] != VALUE) fail("not the message that was sent");
}

int main(int count, char **words) {
    message *m = map_pool("/dev/shm/message", sizeof *m);
    if (cudaHostRegister(m, sizeof *m, cudaHostRegisterDefault) != cudaSuccess) fail("the GPU does not reach the pool");
    if (count == 2 && !strcmp(words[1], "send")) send(m);
    else if (count == 2 && !strcmp(words[1], "receive")) receive(m);
    else fail("stream_copy send|receive");
    return 0;
}
