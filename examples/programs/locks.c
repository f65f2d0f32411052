/* Hosts take a lock in turn, once each.   locks peterson|bakery HOST HOSTS
 * -DBUG: Peterson's hosts say that they want it too late, and those of the bakery do not wait for others who draw. Each flush,
 * fence and invalidate is there, but in some interleavings two hosts are inside.
 *
 *     cxlemu cc -O2 -g locks.c -o locks
 *     cxlemu exec --pool /dev/shm/locks --every -- ./locks peterson 0 2 : ./locks peterson 1 2 */
#ifdef BUG
#define BROKEN_LOCK
#endif
#include "locks.h"

typedef struct {
    peterson peterson;
    bakery bakery;
    word inside;
} locks;

int main(int count, char **words) {
    locks *l = map_pool("/dev/shm/locks", sizeof *l);
    if (count != 4) fail("locks peterson|bakery HOST HOSTS");
    const int me = atoi(words[2]), hosts = atoi(words[3]), draws = words[1][0] == 'b';
    if (me < 0 || me >= hosts || hosts > HOSTS_MOST) fail("HOST is below HOSTS, which is at most 4");
    if (draws) bakery_lock(&l->bakery, me, hosts);
    else peterson_lock(&l->peterson, me, hosts);
    cxl_assert(!get(&l->inside));
    set(&l->inside, 1);
    set(&l->inside, 0);
    if (draws) bakery_unlock(&l->bakery, me);
    else peterson_unlock(&l->peterson, me, hosts);
    return 0;
}
