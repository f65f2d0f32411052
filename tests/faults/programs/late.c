/* A library that its program loads when it runs. */
#include <stdint.h>

void publish(uint8_t *at, uint8_t value);
void publish(uint8_t *at, uint8_t value) {
    *at = value;
    __asm__ volatile("clflushopt (%0)\n sfence" ::"r"(at) : "memory");
}
