/* The nodes of C++'s lists, maps and sets, which functions of libstdc++.so link and turn. No compiler has instrumented them, so ours
 * stand in for them: the same fields are loaded and stored, and told at the line that calls. */
#include "self.h"

#define HERE __builtin_return_address(0)
#define NAMED(name) __asm__(name) PROGRAM_EXPORT

typedef const void *caller; /* where the program called */

/* Load and store a field; in a pool, each is a step. */
#define FIELD(type, name)                                            \
    static inline type get_##name(caller by, const type *at) {       \
        if (__builtin_expect(outside_pools(at), 1)) return *at;      \
        prog_load(at, sizeof *at, by);                               \
        return *(const type *)reachable(at);                         \
    }                                                                \
    static inline void set_##name(caller by, type *at, type value) { \
        if (!__builtin_expect(outside_pools(at), 1)) {               \
            prog_store(at, sizeof *at, by);                          \
            at = reachable(at);                                      \
        }                                                            \
        *at = value;                                                 \
    }

/* --- lists: a ring with the container in it -------------------------------------------------------------------------- */

typedef struct chained {
    struct chained *next, *previous;
} chained, *chained_at;
FIELD(chained_at, link)

static void join(caller by, chained *first, chained *second) {
    set_link(by, &first->next, second);
    set_link(by, &second->previous, first);
}

#define LIST(name) "_ZNSt8__detail15_List_node_base" name
void list_hook(chained *its, chained *before) NAMED(LIST("7_M_hookEPS0_"));
void list_hook(chained *its, chained *before) {
    const caller by = HERE;
    join(by, get_link(by, &before->previous), its);
    join(by, its, before);
}

void list_unhook(chained *its) NAMED(LIST("9_M_unhookEv"));
void list_unhook(chained *its) {
    const caller by = HERE;
    join(by, get_link(by, &its->previous), get_link(by, &its->next));
}

/* Move the links from `first` up to `end`, which stays, to before `its`. */
void list_transfer(chained *its, chained *first, chained *end) NAMED(LIST("11_M_transferEPS0_S1_"));
void list_transfer(chained *its, chained *first, chained *end) {
    const caller by = HERE;
    if (its == end) return;
    chained *last = get_link(by, &end->previous), *left = get_link(by, &first->previous);
    chained *before = get_link(by, &its->previous);
    join(by, left, end);
    join(by, before, first);
    join(by, last, its);
}

void list_reverse(chained *its) NAMED(LIST("10_M_reverseEv"));
void list_reverse(chained *its) {
    const caller by = HERE;
    chained *at = its;
    do {
        chained *next = get_link(by, &at->next);
        set_link(by, &at->next, get_link(by, &at->previous));
        set_link(by, &at->previous, next);
        at = next;
    } while (at != its);
}

/* Give the links of a list to a container, which was the other one's. */
static void adopt(caller by, chained *its, chained *first, chained *last, const chained *other) {
    if (first == other) first = last = its; /* it was empty */
    join(by, its, first);
    join(by, last, its);
}

void list_swap(chained *a, chained *b) NAMED(LIST("4swapERS0_S1_"));
void list_swap(chained *a, chained *b) {
    const caller by = HERE;
    chained *first_a = get_link(by, &a->next), *last_a = get_link(by, &a->previous);
    chained *first_b = get_link(by, &b->next), *last_b = get_link(by, &b->previous);
    adopt(by, a, first_b, last_b, b);
    adopt(by, b, first_a, last_a, a);
}

/* --- maps and sets: red-black trees ---------------------------------------------------------------------------------- */

/* The container's own node is red; its parent is the root, its children are the first and the last node. */
enum { RED, BLACK };
enum { LEFT, RIGHT };
typedef struct node {
    int color;
    struct node *parent, *child[2];
} node, *node_at;
FIELD(int, color)
FIELD(node_at, node)

static node *parent_of(caller by, const node *its) { return get_node(by, &its->parent); }
static node *child_of(caller by, const node *its, int side) { return get_node(by, &its->child[side]); }
static bool is_red(caller by, const node *its) { return get_color(by, &its->color) == RED; }

static node *outermost(caller by, node *its, int side) {
    for (node *below; (below = child_of(by, its, side));) its = below;
    return its;
}

/* Return the neighbor in the order, from a node that is not the container's. */
static node *neighbor(caller by, node *its, int side) {
    node *below = child_of(by, its, side), *above;
    if (below) return outermost(by, below, !side);
    for (above = parent_of(by, its); its == child_of(by, above, side); above = parent_of(by, its)) its = above;
    /* Where the root has nothing on this side, the container's node, behind it, names the root as its outermost. */
    return side == RIGHT && child_of(by, its, side) == above ? its : above;
}

#define TREE(name) "_ZSt" name
node *tree_next(node *its) NAMED(TREE("18_Rb_tree_incrementPSt18_Rb_tree_node_base"));
node *tree_next(node *its) { return neighbor(HERE, its, RIGHT); }
node *tree_next_const(node *its) NAMED(TREE("18_Rb_tree_incrementPKSt18_Rb_tree_node_base"));
node *tree_next_const(node *its) { return neighbor(HERE, its, RIGHT); }

static node *previous(caller by, node *its) {
    const bool containers = is_red(by, its) && parent_of(by, parent_of(by, its)) == its;
    return containers ? child_of(by, its, RIGHT) : neighbor(by, its, LEFT);
}
node *tree_previous(node *its) NAMED(TREE("18_Rb_tree_decrementPSt18_Rb_tree_node_base"));
node *tree_previous(node *its) { return previous(HERE, its); }
node *tree_previous_const(node *its) NAMED(TREE("18_Rb_tree_decrementPKSt18_Rb_tree_node_base"));
node *tree_previous_const(node *its) { return previous(HERE, its); }

/* Let `now` stand where `its` stands below its parent, or as the root. */
static void replace(caller by, const node *its, node *now, node *container) {
    node *above = parent_of(by, its);
    if (parent_of(by, container) == its) set_node(by, &container->parent, now);
    else set_node(by, &above->child[child_of(by, above, LEFT) != its], now);
}

/* Let a node change places with its child of the other side. */
static void rotate(caller by, node *its, int side, node *container) {
    node *up = child_of(by, its, !side), *moved = child_of(by, up, side);
    set_node(by, &its->child[!side], moved);
    if (moved) set_node(by, &moved->parent, its);
    set_node(by, &up->parent, parent_of(by, its));
    replace(by, its, up, container);
    set_node(by, &up->child[side], its);
    set_node(by, &its->parent, up);
}

static void color_after_insert(caller by, node *its, node *container) {
    for (node *above; its != parent_of(by, container) && is_red(by, above = parent_of(by, its));) {
        node *top = parent_of(by, above);
        const int side = above == child_of(by, top, LEFT) ? LEFT : RIGHT;
        node *uncle = child_of(by, top, !side);
        if (uncle && is_red(by, uncle)) {
            set_color(by, &uncle->color, BLACK);
            its = top;
        } else if (its == child_of(by, above, !side)) {
            rotate(by, its = above, side, container);
            continue;
        }
        set_color(by, &above->color, BLACK);
        set_color(by, &top->color, RED);
        if (its != top) rotate(by, top, !side, container);
    }
    node *root = parent_of(by, container);
    set_color(by, &root->color, BLACK);
}

void tree_insert(bool left, node *its, node *above, node *container)
    NAMED(TREE("29_Rb_tree_insert_and_rebalancebPSt18_Rb_tree_node_baseS0_RS_"));
void tree_insert(bool left, node *its, node *above, node *container) {
    const caller by = HERE;
    const int side = left ? LEFT : RIGHT;
    set_node(by, &its->parent, above);
    set_node(by, &its->child[LEFT], NULL);
    set_node(by, &its->child[RIGHT], NULL);
    set_color(by, &its->color, RED);
    set_node(by, &above->child[side], its);
    if (above == container) {
        set_node(by, &container->parent, its);
        set_node(by, &container->child[!side], its);
    } else if (above == child_of(by, container, side)) {
        set_node(by, &container->child[side], its);
    }
    color_after_insert(by, its, container);
}

/* One black node fewer is above `its`, which may be NULL, below `above`. */
static void color_after_erase(caller by, node *its, node *above, node *container) {
    while (its != parent_of(by, container) && (!its || !is_red(by, its))) {
        const int side = its == child_of(by, above, LEFT) ? LEFT : RIGHT;
        node *sibling = child_of(by, above, !side);
        if (is_red(by, sibling)) {
            set_color(by, &sibling->color, BLACK);
            set_color(by, &above->color, RED);
            rotate(by, above, side, container);
            sibling = child_of(by, above, !side);
        }
        node *near = child_of(by, sibling, side), *far = child_of(by, sibling, !side);
        const bool far_red = far && is_red(by, far);
        if (!far_red && !(near && is_red(by, near))) {
            set_color(by, &sibling->color, RED);
            its = above, above = parent_of(by, above);
            continue;
        }
        if (!far_red) {
            rotate(by, sibling, !side, container);
            far = sibling, sibling = near;
        }
        set_color(by, &sibling->color, get_color(by, &above->color));
        set_color(by, &above->color, BLACK);
        set_color(by, &far->color, BLACK);
        rotate(by, above, side, container);
        break;
    }
    if (its) set_color(by, &its->color, BLACK);
}

/* Take out a node that has at most one child, `below`. */
static void take_out(caller by, node *its, node *below, node *container) {
    node *above = parent_of(by, its);
    if (below) set_node(by, &below->parent, above);
    replace(by, its, below, container);
    for (int side = LEFT; side <= RIGHT; side++)
        if (child_of(by, container, side) == its)
            set_node(by, &container->child[side], below ? outermost(by, below, side) : above);
}

/* Let the node `now`, which is its next one, take the place, the children and the color of `its`. Return what `now` stood below. */
static node *take_place(caller by, node *its, node *now, node *below, node *container) {
    node *left = child_of(by, its, LEFT), *right = child_of(by, its, RIGHT), *above = now;
    set_node(by, &left->parent, now);
    set_node(by, &now->child[LEFT], left);
    if (now != right) {
        above = parent_of(by, now);
        if (below) set_node(by, &below->parent, above);
        set_node(by, &above->child[LEFT], below);
        set_node(by, &now->child[RIGHT], right);
        set_node(by, &right->parent, now);
    }
    replace(by, its, now, container);
    set_node(by, &now->parent, parent_of(by, its));
    const int swapped = get_color(by, &now->color);
    set_color(by, &now->color, get_color(by, &its->color));
    set_color(by, &its->color, swapped);
    return above;
}

node *tree_erase(node *its, node *container) NAMED(TREE("28_Rb_tree_rebalance_for_erasePSt18_Rb_tree_node_baseRS_"));
node *tree_erase(node *its, node *container) {
    const caller by = HERE;
    node *left = child_of(by, its, LEFT), *below = child_of(by, its, RIGHT), *above;
    if (left && below) {
        node *now = outermost(by, below, LEFT);
        below = child_of(by, now, RIGHT);
        above = take_place(by, its, now, below, container);
    } else {
        above = parent_of(by, its);
        if (left) below = left;
        take_out(by, its, below, container);
    }
    if (!is_red(by, its)) color_after_erase(by, below, above, container);
    return its;
}
