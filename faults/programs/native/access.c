#define _GNU_SOURCE
#include "access.h"

#if defined(__x86_64__)

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "elements.h"
#include "pages.h"
#include "registers.h"
#include "self.h"
#include "x86_access.h"

enum { PAGE = 4096, WRITES = 2, TRAP_FLAG = 0x100, DIRECTION_FLAG = 0x400, ZERO_FLAG = 0x40 };
enum { PAGES = 32 }; /* as many as an instruction touches at most: a gather of 16 elements, each across two */
enum { STRING_SOURCE = REG_RSI, STRING_TARGET = REG_RDI };

/* The thread's state between an access and the trap behind it. */
static _Thread_local struct {
    bool open, counted; /* counted: a locked instruction, whose step ends with it */
    int base; /* the base register that was changed to lead to reachable memory, -1 for none */
    greg_t kept;
    uintptr_t page[PAGES]; /* the pages that were opened instead */
    int pages;
    sigset_t mask;
    struct {
        void *at;
        const void *pc;
        uint8_t nbytes;
        bool compares;
    } locked;
} now __attribute__((tls_model("initial-exec")));

static greg_t *reg(ucontext_t *context, int number) { return &context->uc_mcontext.gregs[number]; }

/* --- opening and closing --------------------------------------------------------------------------------------------- */

static void lead_elsewhere(ucontext_t *context, const x86_instruction *instruction, const x86_access *access,
                           void *at) {
    greg_t *base = reg(context, registers_index(instruction->memory.base));
    now.base = access->replaces_base ? -1 : registers_index(instruction->memory.base);
    now.kept = *base;
    *base += (greg_t)((uintptr_t)reachable(at) - (uintptr_t)at);
}

/* Open the page of an access while an instruction runs of which too little is known. */
static void open_pages(const uint8_t *at) {
    const uintptr_t page = (uintptr_t)at / PAGE * PAGE;
    for (int k = 0; k < now.pages; k++)
        if (now.page[k] == page) return;
    if (now.pages == PAGES) return; /* it faults repeatedly until the run's deadline */
    now.page[now.pages++] = page;
    syscall(SYS_mprotect, page, (size_t)PAGE, PROT_READ | PROT_WRITE);
}

static void open_for(ucontext_t *context, const x86_instruction *instruction, const x86_access *access, void *at) {
    if (!now.open) now.mask = context->uc_sigmask, now.base = -1, now.pages = 0;
    now.open = true;
    if (pools_closed && access->movable) lead_elsewhere(context, instruction, access, at);
    else if (pools_closed) open_pages(at);
    /* keep signals out until the trap: their handlers belong to the program */
    sigfillset(&context->uc_sigmask);
    sigdelset(&context->uc_sigmask, SIGTRAP);
    sigdelset(&context->uc_sigmask, SIGSEGV);
}

void access_open(ucontext_t *context, const uint8_t *code, const x86_instruction *instruction, void *at) {
    const x86_access access = x86_access_of(code, instruction);
    open_for(context, instruction, &access, at);
}

void access_close(ucontext_t *context) {
    if (now.base >= 0) *reg(context, now.base) = now.kept;
    while (now.pages) syscall(SYS_mprotect, now.page[--now.pages], (size_t)PAGE, PROT_NONE);
    context->uc_sigmask = now.mask;
    now.open = false;
}

bool access_trap(ucontext_t *context) {
    if (!now.open) return false;
    access_close(context);
    *reg(context, REG_EFL) &= ~(greg_t)TRAP_FLAG;
    if (now.counted) {
        const bool wrote = !now.locked.compares || *reg(context, REG_EFL) & ZERO_FLAG;
        prog_rmw_end(now.locked.at, now.locked.nbytes, wrote, now.locked.pc);
        now.counted = false;
    }
    return true;
}

/* --- announcing ------------------------------------------------------------------------------------------------------ */

/* Announce an access in a pool. Return false when it failed: the thread gets a SIGBUS in its place. */
static bool announce(void *at, size_t nbytes, bool loads, bool stores, const void *pc) {
    const program_self *me = self_here();
    if (!me || me->inside) return true; /* an access of this library, or of a thread whose process is ending */
    const uint32_t failed = me->failed;
    if (loads) prog_load(at, nbytes, pc);
    if (stores && self && self->failed == failed) prog_store(at, nbytes, pc);
    return !self || self->failed == failed;
}

/* --- strings --------------------------------------------------------------------------------------------------------- */

static bool has_source(const x86_access *access) {
    return access->string == X86_MOVS || access->string == X86_CMPS || access->string == X86_LODS;
}

static bool has_target(const x86_access *access) { return access->string != X86_LODS; }

static void move_elements(uint8_t *to, const uint8_t *from, size_t count, size_t size, uint64_t value) {
    for (size_t k = 0; k < count * size; k += size) {
        uint64_t element = value;
        for (size_t b = 0; from && b < size; b++) ((uint8_t *)&element)[b] = ((const volatile uint8_t *)from)[k + b];
        for (size_t b = 0; b < size; b++) ((volatile uint8_t *)to)[k + b] = ((uint8_t *)&element)[b];
    }
}

/* Announce one element of a string instruction that compares, scans or loads, or that goes downwards: a load or a store
 * of each operand in a pool. Return as `announce` does. */
static bool announce_element(ucontext_t *context, const x86_access *access) {
    const void *pc = (const void *)(uintptr_t)(*reg(context, REG_RIP) + 1);
    const bool loads = access->string == X86_CMPS || access->string == X86_SCAS;
    void *from = (void *)(uintptr_t)*reg(context, STRING_SOURCE), *to = (void *)(uintptr_t)*reg(context, STRING_TARGET);
    if (has_source(access) && !announce(from, access->nbytes, true, false, pc)) return false;
    return !has_target(access) || announce(to, access->nbytes, loads, !loads, pc);
}

static void open_operand(const uint8_t *at, size_t nbytes) {
    if (!prog_in_pool(at, nbytes)) return;
    open_pages(at);
    if (prog_in_pool(at + nbytes - 1, 1)) open_pages(at + nbytes - 1);
}

static void open_operands(ucontext_t *context, const x86_access *access) {
    if (!pools_closed) return;
    if (has_source(access)) open_operand((uint8_t *)(uintptr_t)*reg(context, STRING_SOURCE), access->nbytes);
    if (has_target(access)) open_operand((uint8_t *)(uintptr_t)*reg(context, STRING_TARGET), access->nbytes);
}

/* Execute a whole string instruction that moves or stores upwards, as one load and one store for each mapping. False where its next
 * element lies in two. */
static bool whole_string(ucontext_t *context, const x86_instruction *instruction, const x86_access *access) {
    const void *pc = (const void *)(uintptr_t)(*reg(context, REG_RIP) + 1);
    const size_t all = access->repeats ? (size_t)*reg(context, REG_RCX) : 1;
    uint8_t *to = (uint8_t *)(uintptr_t)*reg(context, STRING_TARGET);
    const bool moves = access->string == X86_MOVS;
    const uint8_t *from = moves ? (const uint8_t *)(uintptr_t)*reg(context, STRING_SOURCE) : NULL;
    const size_t count = in_one_mapping(to, in_one_mapping(from, all * access->nbytes)) / access->nbytes,
                 nbytes = count * access->nbytes;
    if (count == 0 && all) return false;
    if (moves && !announce((void *)(uintptr_t)from, nbytes, true, false, pc)) return true;
    if (!announce(to, nbytes, false, true, pc)) return true;
    move_elements(reachable(to), moves ? reachable(from) : NULL, count, access->nbytes,
                  (uint64_t)*reg(context, REG_RAX));
    *reg(context, STRING_TARGET) += (greg_t)nbytes;
    if (moves) *reg(context, STRING_SOURCE) += (greg_t)nbytes;
    if (access->repeats) *reg(context, REG_RCX) = (greg_t)(all - count);
    if (count == all) *reg(context, REG_RIP) += instruction->length;
    return true;
}

/* --- a fault --------------------------------------------------------------------------------------------------------- */

/* Announce a gather, a scatter or a masked move by its elements, and open the pages that it touches. False where it is none of these;
 * *failed: the thread gets a SIGBUS in its place. */
static bool by_elements(ucontext_t *context, const uint8_t *code, const x86_instruction *instruction, bool *failed) {
    const uint8_t *frame = (const uint8_t *)context->uc_mcontext.fpregs;
    uint64_t general[16];
    element_runs found;
    x86_elements its;
    for (int k = 0; k < 16; k++) general[k] = (uint64_t)*reg(context, registers_index(k));
    if (!x86_elements_of(code, &its) || (!its.index_bytes && its.mask == X86_ALL && !its.packed)) return false;
    if (!elements_find(code, (uintptr_t)code, general, frame, registers_area_bytes(frame), &found)) return false;
    for (int k = 0; k < found.count && !*failed; k++) {
        uint8_t *at = (uint8_t *)(uintptr_t)found.runs[k].begin;
        const size_t nbytes = found.runs[k].end - found.runs[k].begin;
        if (!prog_in_pool(at, nbytes)) continue;
        *failed = !announce(at, nbytes, !found.stores, found.stores, code + 1);
    }
    const x86_access unmovable = {0};
    for (int k = 0; k < found.count && !*failed; k++) {
        uint8_t *at = (uint8_t *)(uintptr_t)found.runs[k].begin;
        if (!prog_in_pool(at, found.runs[k].end - found.runs[k].begin)) continue;
        open_for(context, instruction, &unmovable, at);
        open_operand(at, found.runs[k].end - found.runs[k].begin);
    }
    *reg(context, REG_EFL) |= *failed ? 0 : TRAP_FLAG;
    return true;
}

static bool decode(const uint8_t *code, x86_instruction *instruction) {
    const size_t on_page = PAGE - (uintptr_t)code % PAGE;
    return x86_decode(code, on_page, instruction) || x86_decode(code, X86_LONGEST, instruction);
}

/* Take the turn for a locked instruction, until access_trap. Return as `announce` does. */
static bool lock(const x86_instruction *instruction, void *at, const void *pc) {
    now.locked.at = at, now.locked.pc = pc;
    now.locked.nbytes = instruction->nbytes, now.locked.compares = instruction->compares;
    const program_self *me = self_here();
    if (!me || me->inside) return true;
    const uint32_t failed = me->failed;
    prog_rmw_begin(at, instruction->nbytes, pc);
    now.counted = self && self->inside;
    return !self || self->failed == failed;
}

bool access_fault(const siginfo_t *info, ucontext_t *context) {
    const uint8_t *code = (const uint8_t *)(uintptr_t)*reg(context, REG_RIP);
    const bool stores = *reg(context, REG_ERR) & WRITES;
    bool locked = false;
    uint8_t *at = info->si_addr;
    x86_instruction instruction;
    x86_access access = {.nbytes = 8};
    if (!pages_allow(at, stores)) return false;
    if (decode(code, &instruction)) {
        bool failed = false;
        if (by_elements(context, code, &instruction, &failed)) return true;
        access = x86_access_of(code, &instruction);
        const bool moves = access.string == X86_MOVS || access.string == X86_STOS;
        const bool upwards = !(*reg(context, REG_EFL) & DIRECTION_FLAG);
        if (moves && upwards && whole_string(context, &instruction, &access)) return true;
        uint8_t *named = (uint8_t *)registers_address(context, &instruction, (uintptr_t)code + instruction.length);
        if (instruction.has_memory && (size_t)(at - named) < access.nbytes) at = named;
        else access.movable = false; /* it accesses more than the operand that it names */
        if (in_one_mapping(at, access.nbytes) < access.nbytes) access.movable = false;
        if (instruction.kind == X86_LOCKED && !now.open) {
            if (!lock(&instruction, at, code + 1)) return true;
            locked = true;
        }
    }
    if (access.string) {
        if (!announce_element(context, &access)) return true;
    } else if (!locked && !announce(at, access.nbytes, !stores || access.loads, stores, code + 1)) {
        return true;
    }
    open_for(context, &instruction, &access, at);
    if (access.string) open_operands(context, &access);
    else if (pools_closed && !access.movable) open_operand(at, access.nbytes);
    *reg(context, REG_EFL) |= TRAP_FLAG;
    return true;
}

#endif
