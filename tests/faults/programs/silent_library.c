/* A library as others build it: it stores, writes back and fences by itself; and one that loads. */
#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>

void library_put(volatile uint8_t *to, const uint8_t *from, size_t nbytes);
void library_put(volatile uint8_t *to, const uint8_t *from, size_t nbytes) {
    for (size_t k = 0; k < nbytes; k++) to[k] = from[k];
    for (size_t k = 0; k < nbytes; k += 64) _mm_clflush((const void *)(to + k));
    _mm_sfence();
}

void library_get(uint8_t *to, const volatile uint8_t *from, size_t nbytes);
void library_get(uint8_t *to, const volatile uint8_t *from, size_t nbytes) {
    for (size_t k = 0; k < nbytes; k++) to[k] = from[k];
}
