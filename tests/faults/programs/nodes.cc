/* The functions of libstdc++.so on nodes in a pool do what they do on private ones, where the library's own are called: links and
 * colors are equal after each of many random operations. nodes TURNS POOL */
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <fcntl.h>
#include <list>
#include <map>
#include <string>
#include <sys/mman.h>
#include <unordered_map>

using node = std::_Rb_tree_node_base;
using link = std::__detail::_List_node_base;
enum { NODES = 64, LINKS = 16 };
static int turns;

static void *library;
template <class F> static F real(const char *name) {
    auto *its = reinterpret_cast<F>(dlsym(library, name));
    if (!its) std::printf("no %s\n", name), std::exit(3);
    return its;
}
static void must(bool holds, const char *what) {
    if (!holds) std::printf("%s differs\n", what), std::exit(1);
}

struct trees {
    node head, at[NODES];
    int number(const node *its) const { return !its ? -2 : its == &head ? -1 : static_cast<int>(its - at); }
};

static void clear(trees &its) { its.head = {std::_S_red, nullptr, &its.head, &its.head}; }
static bool equal(const trees &a, const trees &b, int k) {
    const node &x = k < 0 ? a.head : a.at[k], &y = k < 0 ? b.head : b.at[k];
    return x._M_color == y._M_color && a.number(x._M_parent) == b.number(y._M_parent) &&
           a.number(x._M_left) == b.number(y._M_left) && a.number(x._M_right) == b.number(y._M_right);
}
template <class I> static void insert(I into, trees &its, int k) {
    node *above = &its.head, *at = its.head._M_parent;
    bool left = true;
    while (at) above = at, left = k < its.number(at), at = left ? at->_M_left : at->_M_right;
    into(left, &its.at[k], above, its.head);
}

static void of_trees(trees &ours, trees &theirs) {
    const auto into = real<void (*)(bool, node *, node *, node &)>(
        "_ZSt29_Rb_tree_insert_and_rebalancebPSt18_Rb_tree_node_baseS0_RS_");
    const auto erase = real<node *(*)(node *, node &)>("_ZSt28_Rb_tree_rebalance_for_erasePSt18_Rb_tree_node_baseRS_");
    const auto next = real<node *(*)(node *)>("_ZSt18_Rb_tree_incrementPSt18_Rb_tree_node_base"),
               previous = real<node *(*)(node *)>("_ZSt18_Rb_tree_decrementPSt18_Rb_tree_node_base");
    bool in[NODES] = {};
    clear(ours), clear(theirs);
    for (int turn = 0, count = 0; turn < turns; turn++) {
        const int k = std::rand() % (turn / 128 % 2 ? NODES : 5); /* also small ones */
        if (!in[k]) insert(std::_Rb_tree_insert_and_rebalance, ours, k), insert(into, theirs, k);
        else
            must(ours.number(std::_Rb_tree_rebalance_for_erase(&ours.at[k], ours.head)) == k, "what is erased"),
                erase(&theirs.at[k], theirs.head);
        count += in[k] ? -1 : 1, in[k] = !in[k];
        must(equal(ours, theirs, -1), "the tree's head");
        for (int n = 0; n < NODES; n++) {
            if (!in[n]) continue;
            const node *its = &ours.at[n];
            must(equal(ours, theirs, n), "a node");
            must(ours.number(std::_Rb_tree_increment(its)) == theirs.number(next(&theirs.at[n])), "the next node");
            if (its != ours.head._M_left)
                must(ours.number(std::_Rb_tree_decrement(its)) == theirs.number(previous(&theirs.at[n])),
                     "the previous node");
        }
        if (count) must(std::_Rb_tree_decrement(&ours.head) == ours.head._M_right, "the last node");
    }
}

/* Two rings: the last two links are their heads. */
struct rings {
    link at[LINKS];
};
static void of_lists(rings &ours, rings &theirs) {
    const auto hook = real<void (*)(link *, link *)>("_ZNSt8__detail15_List_node_base7_M_hookEPS0_"),
               swap = real<void (*)(link *, link *)>("_ZNSt8__detail15_List_node_base4swapERS0_S1_");
    const auto unhook = real<void (*)(link *)>("_ZNSt8__detail15_List_node_base9_M_unhookEv"),
               reverse = real<void (*)(link *)>("_ZNSt8__detail15_List_node_base10_M_reverseEv");
    const auto transfer = real<void (*)(link *, link *, link *)>(
        "_ZNSt8__detail15_List_node_base11_M_transferEPS0_S1_");
    bool in[LINKS] = {};
    for (rings *its : {&ours, &theirs})
        for (int k = LINKS - 2; k < LINKS; k++) its->at[k]._M_next = its->at[k]._M_prev = &its->at[k];
    for (int turn = 0; turn < turns; turn++) {
        const int k = std::rand() % (LINKS - 2), head = LINKS - 1 - std::rand() % 2, what = std::rand() % 8;
        link *a = ours.at, *b = theirs.at;
        if (what == 0) a[head]._M_reverse(), reverse(&b[head]);
        else if (what == 1) link::swap(a[LINKS - 1], a[LINKS - 2]), swap(&b[LINKS - 1], &b[LINKS - 2]);
        else if (what == 2 && a[head]._M_next != &a[head]) { /* to the end of the other one, or of itself */
            const int to = LINKS - 1 - std::rand() % 2, first = static_cast<int>(a[head]._M_next - a);
            a[to]._M_transfer(&a[first], &a[head]), transfer(&b[to], &b[first], &b[head]);
        } else if (!in[k]) in[k] = true, a[k]._M_hook(&a[head]), hook(&b[k], &b[head]);
        else in[k] = false, a[k]._M_unhook(), unhook(&b[k]);
        for (int n = 0; n < LINKS; n++)
            if (in[n] || n >= LINKS - 2)
                must(a[n]._M_next - a == b[n]._M_next - b && a[n]._M_prev - a == b[n]._M_prev - b, "a link");
    }
}

static void of_hashes(char *ours) {
    const auto hash = real<size_t (*)(const void *, size_t, size_t)>("_ZSt11_Hash_bytesPKvmm");
    using policy = std::__detail::_Prime_rehash_policy;
    const auto bucket = real<size_t (*)(policy *, size_t)>("_ZNKSt8__detail20_Prime_rehash_policy11_M_next_bktEm");
    const auto grows = real<std::pair<bool, size_t> (*)(policy *, size_t, size_t, size_t)>(
        "_ZNKSt8__detail20_Prime_rehash_policy14_M_need_rehashEmmm");
    for (int k = 0; k < 64; k++) {
        std::memset(ours, k, k);
        must(std::_Hash_bytes(ours, k, 7) == hash(ours, k, 7), "a hash");
        policy &its = *new (ours) policy(), other;
        must(its._M_next_bkt(k * k) == bucket(&other, k * k) && its._M_next_resize == other._M_next_resize, "a size");
        must(its._M_need_rehash(1, k * k, 1) == grows(&other, 1, k * k, 1) &&
                 its._M_next_resize == other._M_next_resize,
             "whether it grows");
    }
}

int main(int count, char **words) {
    static trees theirs;
    static rings rings_theirs;
    library = dlopen("libstdc++.so.6", RTLD_NOW);
    char *at = static_cast<char *>(
        mmap(nullptr, 2 << 20, PROT_READ | PROT_WRITE, MAP_SHARED, open(words[count - 1], O_RDWR), 0));
    if (count != 3 || at == MAP_FAILED) return 3;
    turns = std::atoi(words[1]);
    of_trees(*reinterpret_cast<trees *>(at), theirs);
    of_lists(*reinterpret_cast<rings *>(at), rings_theirs);
    of_hashes(at);
    return 0;
}
