// C++20's threads, latch, barrier, semaphore and atomic wait: four threads of a host fill their parts of a block in rounds, and publish
// each round; the other host reads it and acknowledges it. NOT_FLUSHED and NO_INVALIDATE leave that out.
#include <atomic>
#include <barrier>
#include <cxl.h>
#include <fcntl.h>
#include <latch>
#include <numeric>
#include <semaphore>
#include <span>
#include <stop_token>
#include <sys/mman.h>
#include <thread>
#include <vector>

struct block {
    alignas(64) std::atomic<unsigned> round;
    alignas(64) long part[4][8];
    alignas(64) std::atomic<unsigned> done;
};

static void write(block *b) {
    std::latch ready{4};
    std::counting_semaphore<8> slots{2};
    std::atomic<int> phase{0};
    unsigned round = 0;
    std::barrier sync{4, [&]() noexcept {
                          b->round.store(++round, std::memory_order_release);
                          cxl_flush(&b->round, 4), cxl_fence();
                          phase.fetch_add(1);
                          phase.notify_all();
                      }};
    std::vector<std::jthread> threads;
    for (int k = 0; k < 4; k++)
        threads.emplace_back([&, k](std::stop_token stop) {
            ready.arrive_and_wait();
            for (unsigned r = 1; r <= 3 && !stop.stop_requested(); r++) {
                slots.acquire();
                auto mine = std::span(b->part[k]);
                std::iota(mine.begin(), mine.end(), r * 100 + k);
#ifndef NOT_FLUSHED
                cxl_flush(mine.data(), mine.size_bytes()), cxl_fence();
#endif
                slots.release();
                sync.arrive_and_wait();
                while (b->done.load() < r) cxl_invalidate(&b->done, 4);
            }
        });
    for (int wanted = 1; wanted <= 3; wanted++)
        while (phase.load() < wanted) phase.wait(wanted - 1);
}

int main(int, char **words) {
    auto *b = (block *)mmap(nullptr, 2 << 20, PROT_READ | PROT_WRITE, MAP_SHARED, open(words[1], O_RDWR), 0);
    if (*words[2] == 'w') {
        write(b);
        return 0;
    }
    for (unsigned r = 1; r <= 3; r++) {
        while (b->round.load(std::memory_order_acquire) < r) cxl_invalidate(&b->round, 4);
#ifndef NO_INVALIDATE
        cxl_invalidate(b->part, sizeof b->part);
#endif
        for (int k = 0; k < 32; k++)
            if (b->part[k / 8][k % 8] != long(r * 100 + unsigned(k / 8 + k % 8))) return 2;
        b->done.store(r);
        cxl_flush(&b->done, 4), cxl_fence();
    }
}
