/* What each host knows of the others, as vector clocks: it learns from versions that it sees, and when a process starts. */
#include "check.h"

#include <string.h>

static check_host *host_of(int host) { return &room_now()->host[host]; }

/* Return what a host knew at a step: the last entry of its log that is not later. Where the log does not go back that far,
 * the host counts as knowing nothing. */
static const check_knowledge *knowledge_at(int host, uint32_t time) {
    static const check_knowledge nothing;
    const check_host *h = host_of(host);
    for (uint32_t back = 1; back <= LOG && back <= h->log_count; back++) {
        const check_knowledge *entry = &room_now()->book[host].log[(h->log_count - back) % LOG];
        if (entry->time <= time) return entry;
    }
    return &nothing;
}

static void note(int host, uint32_t now) {
    check_host *h = host_of(host);
    check_knowledge *log = room_now()->book[host].log;
    const bool same = h->log_count && log[(h->log_count - 1) % LOG].time == now;
    if (!same) h->log_count++;
    check_knowledge *entry = &log[(h->log_count - 1) % LOG];
    entry->time = now;
    memcpy(entry->knows, h->knows, sizeof entry->knows);
}

/* Let a host know all that `other` had done and known up to `time`; returns whether it is news. */
static bool learn(int host, int other, uint32_t time) {
    check_host *h = host_of(host);
    if (host == other || time <= h->knows[other]) return false;
    const check_knowledge *theirs = knowledge_at(other, time);
    for (int k = 0; k < PROGRAM_HOSTS; k++)
        if (k != host && theirs->knows[k] > h->knows[k]) h->knows[k] = theirs->knows[k];
    h->knows[other] = time;
    return true;
}

void know_learn(int host, const check_write *seen, uint16_t heard_at, uint32_t now, bool perhaps) {
    check_host *h = host_of(host);
    uint32_t knew[PROGRAM_HOSTS];
    memcpy(knew, h->knows, sizeof knew);
    if (!perhaps) h->unsure = false;
    if (!learn(host, seen->host, seen->time)) return;
    note(host, now);
    if (perhaps && !h->unsure) memcpy(h->sure, knew, sizeof knew), h->unsure = true;
    h->told_before[seen->host] = h->told[seen->host];
    h->told[seen->host] = now;
    h->published[seen->host] = seen->site, h->heard[seen->host] = heard_at;
}

void know_end(int host, int stage, uint32_t now) {
    check_host *h = host_of(host);
    if (stage != h->stage) h->ended_before = h->ended, h->stage = stage;
    h->ended = now;
}

void know_start(int host, int stage) {
    check_host *h = host_of(host);
    bool news = false;
    uint32_t last = 0;
    for (int other = 0; other < PROGRAM_HOSTS; other++) {
        const check_host *its = host_of(other);
        const uint32_t ended = its->stage < stage ? its->ended : its->ended_before;
        if (!ended || !learn(host, other, ended)) continue;
        news = true, last = ended > last ? ended : last;
        h->told_before[other] = h->told[other], h->told[other] = ended;
        h->published[other] = h->heard[other] = 0;
    }
    if (news) note(host, last);
    if (!h->born) memcpy(h->knew_when_born, h->knows, sizeof h->knows);
    h->born = true;
}
