#define _GNU_SOURCE
#include "traps.h"

#if defined(__x86_64__)

#include "asynchronous.h"
#include "pages.h"
#include "access.h"
#include "patch.h"
#include "self.h"
#include "registers.h"
#include "signals.h"

#include <errno.h>
#include <string.h>

enum { ZERO_FLAG = 0x40 };

/* The place that a locked instruction changes, between its two traps. */
static _Thread_local struct {
    void *at;
} locked;

/* A site as events name it: by the address to which a call at the site would return. */
#define PC(site) ((site)->at + 1)

static void go_on(ucontext_t *context, const void *at) { context->uc_mcontext.gregs[REG_RIP] = (greg_t)(uintptr_t)at; }

/* Outside of every pool a flush is executed as it stands: at an invalid address it faults, as it would without a
 * patch. */
static const uint8_t *flush(const patch_site *site, const void *at, const uint8_t *next) {
    const enum x86_kind kind = site->instruction.kind;
    prog_flush(at, kind == X86_CLWB ? FLUSH_KEEP : kind == X86_CLFLUSH ? FLUSH_DROP_ORDERED : FLUSH_DROP, PC(site));
    return prog_in_pool(at, 1) ? next : patch_aside(site);
}

static const uint8_t *store(const patch_site *site, ucontext_t *context, const uint8_t *next) {
    const x86_instruction *instruction = &site->instruction;
    uint8_t *at = (uint8_t *)registers_target(context, instruction, (uintptr_t)next), bytes[64];
    bool stored[64];
    if (!prog_in_pool(at, instruction->nbytes) ||
        !registers_stored(context, instruction, (uintptr_t)next, bytes, stored))
        return patch_aside(site);
    for (size_t from = 0, to; from < instruction->nbytes; from = to) {
        for (to = from + 1; to < instruction->nbytes && stored[to] == stored[from];) to++;
        if (stored[from]) prog_nt_store(at + from, bytes + from, to - from, PC(site));
    }
    return next;
}

/* In a pool a locked instruction is executed between two traps, while its thread keeps the turn. Signals are kept out
 * meanwhile: their handlers belong to the program. */
static const uint8_t *lock(const patch_site *site, ucontext_t *context, const uint8_t *next) {
    locked.at = (void *)registers_address(context, &site->instruction, (uintptr_t)next);
    if (!prog_in_pool(locked.at, site->instruction.nbytes)) {
        prog_fence(FENCE_LOCKED, PC(site));
        return patch_aside(site);
    }
    pages_touch(locked.at, site->instruction.nbytes);
    if (pools_closed) pages_demand(locked.at, site->instruction.nbytes, true);
    const uint32_t failed = self ? self->failed : 0;
    prog_rmw_begin(locked.at, site->instruction.nbytes, PC(site));
    if (self && self->failed != failed) return site->at; /* a SIGBUS comes first */
    access_open(context, patch_aside(site), &site->instruction, locked.at);
    return patch_stopping(site);
}

static const uint8_t *unlock(const patch_site *site, ucontext_t *context, const uint8_t *next) {
    const bool wrote = !site->instruction.compares || context->uc_mcontext.gregs[REG_EFL] & ZERO_FLAG;
    access_close(context);
    prog_rmw_end(locked.at, site->instruction.nbytes, wrote, PC(site));
    return next;
}

static const uint8_t *called(const patch_site *site, ucontext_t *context, const uint8_t *next) {
    greg_t *r = context->uc_mcontext.gregs;
    const long words[] = {r[REG_RDI], r[REG_RSI], r[REG_RDX], r[REG_R10], r[REG_R8], r[REG_R9]};
    r[REG_RAX] = system_call(r[REG_RAX], words, PC(site));
    return next;
}

static const uint8_t *follow(const patch_site *site, ucontext_t *context) {
    const uint8_t *next = site->at + site->instruction.length;
    switch (site->instruction.kind) {
    case X86_CLFLUSH:
    case X86_CLFLUSHOPT:
    case X86_CLWB:
        return flush(site, (const void *)registers_address(context, &site->instruction, (uintptr_t)next), next);
    case X86_SFENCE: prog_fence(FENCE_STORES, PC(site)); return next;
    case X86_LFENCE: prog_fence(FENCE_LOADS, PC(site)); return next;
    case X86_MFENCE: prog_fence(FENCE_FULL, PC(site)); return next;
    case X86_NT_STORE: return store(site, context, next);
    case X86_SYSTEM_CALL: return called(site, context, next);
    default: return lock(site, context, next);
    }
}

/* An int3 has the code SI_KERNEL. The trap behind one instruction should have TRAP_TRACE, but has TRAP_BRKPT where a
 * hypervisor has lost its bit of DR6: seen on Linux 6.18 under Firecracker, once in 10,000 to 40,000 traps. */
static void on_trap(int number, siginfo_t *info, void *raw) {
    const int saved = errno;
    ucontext_t *context = raw;
    bool aside;
    const patch_site *site = patch_find((const uint8_t *)(uintptr_t)context->uc_mcontext.gregs[REG_RIP], &aside);
    if (site && info->si_code == SI_KERNEL) {
        const uint8_t *next = site->at + site->instruction.length;
        go_on(context, aside ? unlock(site, context, next) : follow(site, context));
        __atomic_thread_fence(__ATOMIC_SEQ_CST);
    } else if (info->si_code <= 0 || !access_trap(context)) { /* <= 0: sent by a process */
        signals_pass_on(number, info, raw);
    }
    errno = saved;
}

static void on_fault(int number, siginfo_t *info, void *raw) {
    const int saved = errno;
    enum { WRITES = 2 }; /* in the processor's error code */
    ucontext_t *context = raw;
    bool writes = context->uc_mcontext.gregs[REG_ERR] & WRITES;
    const bool demanded = pages_demanded(&writes);
    if (demanded) context->uc_mcontext.gregs[REG_ERR] = writes ? WRITES : 0; /* a program's handler looks there */
    const bool ours = !demanded && info->si_code == SEGV_ACCERR &&
                      (pools_closed ? access_fault(info, context) : pages_fault(info->si_addr, writes));
    if (!ours) signals_pass_on(number, info, raw);
    errno = saved;
}

void traps_begin(bool faults) {
    struct sigaction action = {.sa_flags = SA_SIGINFO | SA_RESTART};
    /* Keep the program's handlers out of this one: they could trap, too. */
    sigfillset(&action.sa_mask);
    sigdelset(&action.sa_mask, SIGTRAP);
    sigdelset(&action.sa_mask, SIGSEGV);
    action.sa_sigaction = on_trap;
    signals_take(SIGTRAP, &action);
    if (!faults) return;
    action.sa_sigaction = on_fault;
    action.sa_flags |= SA_ONSTACK | SA_NODEFER; /* lets the program's handler run where the stack has overflowed */
    signals_take(SIGSEGV, &action);
}

#endif
