// One host fills an array by functions of C++'s library that call one another, and does not flush it; another one looks for its most.
#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <cxl.h>
#include <fcntl.h>
#include <sys/mman.h>

struct shared {
    std::atomic<uint64_t> ready;
    uint64_t rest[7];
    std::array<uint64_t, 8> data;
};

int main(int, char **words) {
    const int file = open(words[1], O_RDWR);
    auto *its = static_cast<shared *>(mmap(nullptr, 2 << 20, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0));
    if (words[2][0] == 'w') {
        std::fill(its->data.begin(), its->data.end(), 7);
        its->ready.store(1, std::memory_order_release);
        cxl_flush(&its->ready, sizeof its->ready);
        cxl_fence();
        return 0;
    }
    do cxl_invalidate(&its->ready, sizeof its->ready);
    while (!its->ready.load(std::memory_order_acquire));
    cxl_invalidate(&its->data, sizeof its->data);
    return *std::max_element(its->data.begin(), its->data.end()) > 7;
}
