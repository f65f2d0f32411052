/* Containers of C++'s library in a pool: host 0 fills one, host 1 looks and changes it, host 0 looks again. containers POOL NAME w|r
 * [no-flush|no-invalidate], which forgets one; without words, it prints the names. */
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cxl.h>
#include <deque>
#include <fcntl.h>
#include <forward_list>
#include <list>
#include <map>
#include <memory>
#include <new>
#include <set>
#include <string>
#include <string_view>
#include <sys/mman.h>
#include <unistd.h>
#include <unordered_map>
#include <vector>

enum { ARENA = 64 << 10, MANY = 40 };
struct box {
    volatile uint64_t turn;
    uint8_t pad[56];
    uint64_t used;
    alignas(64) uint8_t thing[128], arena[ARENA];
};
static box *b;
static std::string forgotten;

template <class T> struct in_pool {
    using value_type = T;
    in_pool() = default;
    template <class U> in_pool(const in_pool<U> &) {}
    T *allocate(size_t n) {
        b->used = (b->used + 15) / 16 * 16 + n * sizeof(T);
        if (b->used > ARENA) abort();
        return reinterpret_cast<T *>(b->arena + b->used - n * sizeof(T));
    }
    void deallocate(T *, size_t) {}
    template <class U> bool operator==(const in_pool<U> &) const { return true; }
    template <class U> bool operator!=(const in_pool<U> &) const { return false; }
};
using text = std::basic_string<char, std::char_traits<char>, in_pool<char>>;
using list = std::list<int, in_pool<int>>;
using map = std::map<int, int, std::less<int>, in_pool<std::pair<const int, int>>>;
using set = std::multiset<int, std::less<int>, in_pool<int>>;
using hashed = std::unordered_map<int, int, std::hash<int>, std::equal_to<int>, in_pool<std::pair<const int, int>>>;
using vector = std::vector<int, in_pool<int>>;
using deque = std::deque<int, in_pool<int>>;
using chain = std::forward_list<int, in_pool<int>>;
using shared = std::shared_ptr<int>;

static void must(bool holds, int line) {
    if (!holds) std::fprintf(stderr, "line %d does not hold\n", line), _exit(5);
}
#define MUST(...) must((__VA_ARGS__), __LINE__)

template <class T> static T &fresh() { return *new (b->thing) T(); }
template <class T> static T &known() { return *std::launder(reinterpret_cast<T *>(b->thing)); }

static const char LONG[] = "a text that is longer than any short one";

/* The name, the type, and what the hosts do with `its`. */
struct way {
    const char *name;
    void (*fill)(), (*change)(), (*look)();
};
#define WAY(name, type, fill, change, look) \
    {#name,                                 \
     [] {                                   \
         auto &its = fresh<type>();         \
         fill;                              \
     },                                     \
     [] {                                   \
         auto &its = known<type>();         \
         change;                            \
     },                                     \
     [] {                                   \
         auto &its = known<type>();         \
         look;                              \
     }},
#define EACH(what) \
    for (int k = 0; k < MANY; k++) what
/* clang-format off */
static const way WAYS[] = {
    WAY(list, list, EACH(its.push_back(k * 7 % MANY)),
        MUST(its.size() == MANY && its.front() == 0 && its.back() == 33); its.sort(); its.erase(std::next(its.begin(), 3)),
        MUST(its.size() == MANY - 1 && *std::next(its.begin(), 3) == 4); its.reverse(); MUST(its.front() == MANY - 1))
    WAY(splice, list, EACH(its.push_back(k)),
        list other(3, 100); its.splice(std::next(its.begin()), other); list empty; empty.swap(its); its.swap(empty),
        MUST(its.size() == MANY + 3 && *std::next(its.begin()) == 100 && *std::next(its.begin(), 4) == 1))
    WAY(map, map, EACH(its.emplace(k * 7 % MANY, k)),
        int k = 0; for (auto &[key, value] : its) MUST(key == k++ && value * 7 % MANY == key); its.erase(5); its[100] = 1,
        MUST(its.size() == MANY && !its.count(5) && its.rbegin()->first == 100 && (--its.end())->second == 1))
    WAY(steps, map, EACH(its.emplace(k, k)), /* only the library loads what is not in the map itself */
        cxl_invalidate(b->thing, sizeof b->thing); auto at = its.begin(); std::advance(at, 9); MUST(at != its.end()),
        MUST(its.size() == MANY))
    WAY(hash, text, its = LONG,
        cxl_invalidate(b->thing, sizeof b->thing); const std::hash<std::string_view> of; MUST(of(its) == of(LONG)),
        MUST(its == LONG))
    WAY(set, set, EACH(its.insert(k % 10)),
        MUST(its.count(3) == 4); its.erase(its.find(3)); its.erase(4),
        MUST(its.size() == MANY - 5 && its.count(3) == 3 && std::is_sorted(its.begin(), its.end())))
    WAY(hashed, hashed, EACH(its.emplace(k, k * k)),
        EACH(MUST(its.at(k) == k * k)); its.erase(3); EACH(its[100 + k] = 1),
        MUST(its.size() == 2 * MANY - 1 && !its.count(3) && its.at(120) == 1))
    WAY(text, text, its = "short"; its += LONG,
        MUST(its == text("short") + LONG && its.find("than") == 27); its.replace(0, 5, "longer"); its.append(3, '>'),
        MUST(its[0] == 'l' && its.back() == '>'))
    WAY(string, std::string, its = "short",
        MUST(its.find('o') == 2 && its.compare("short") == 0); its.insert(0, 1, '<'); its.push_back('>'),
        MUST(its == "<short>" && its.substr(1, 3) == "sho" && std::hash<std::string>()(its) == std::hash<std::string>()("<short>")))
    WAY(vector, vector, EACH(its.push_back(k * 7 % MANY)),
        std::sort(its.begin(), its.end()); EACH(MUST(its[k] == k)); its.insert(its.begin(), 100),
        MUST(its.size() == MANY + 1 && its[0] == 100 && its.back() == MANY - 1))
    WAY(deque, deque, EACH((its.push_back(k), its.push_front(-k))),
        MUST(its.front() == 1 - MANY); its.pop_front(); its.erase(its.begin() + 4),
        MUST(its.size() == 2 * MANY - 2 && its.front() == 2 - MANY))
    WAY(chain, chain, EACH(its.push_front(k)),
        its.sort(); MUST(its.front() == 0); its.remove(3); its.reverse(),
        MUST(std::distance(its.begin(), its.end()) == MANY - 1 && its.front() == MANY - 1))
    WAY(shared, shared, its = std::allocate_shared<int>(in_pool<int>(), 7),
        { auto other = its; MUST(*other == 7 && other.use_count() == 2); } *its = 8,
        MUST(*its == 8 && its.use_count() == 1))
};
/* clang-format on */

static void publish(uint64_t turn) {
    if (forgotten != "no-flush") cxl_flush(&b->used, sizeof *b - offsetof(box, used));
    cxl_fence();
    b->turn = turn;
    cxl_flush(const_cast<uint64_t *>(&b->turn), sizeof b->turn);
    cxl_fence();
}

static void await(uint64_t turn) {
    do cxl_invalidate(const_cast<uint64_t *>(&b->turn), sizeof b->turn);
    while (b->turn < turn);
    if (forgotten != "no-invalidate") cxl_invalidate(&b->used, sizeof *b - offsetof(box, used));
}

int main(int count, char **words) {
    if (count == 1)
        for (const way &its : WAYS) std::puts(its.name);
    if (count < 4) return 3;
    if (count > 4) forgotten = words[4];
    b = static_cast<box *>(mmap(nullptr, 2 << 20, PROT_READ | PROT_WRITE, MAP_SHARED, open(words[1], O_RDWR), 0));
    for (const way &its : WAYS) {
        if (std::string(words[2]) != its.name) continue;
        if (words[3][0] == 'w') its.fill(), publish(1), await(2), its.look(), publish(3);
        else await(1), its.change(), publish(2);
        return 0;
    }
    return 4;
}
