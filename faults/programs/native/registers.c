#define _GNU_SOURCE
#include "registers.h"

#if defined(__x86_64__)

#include <asm/prctl.h>
#include <cpuid.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static const int GENERAL[16] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP, REG_RSI, REG_RDI,
                                REG_R8,  REG_R9,  REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15};

static uint64_t general(const ucontext_t *context, int number) {
    return (uint64_t)context->uc_mcontext.gregs[GENERAL[number & 15]];
}

int registers_index(int number) { return GENERAL[number & 15]; }

static uint64_t segment_base(uint8_t prefix) {
    uint64_t base = 0;
    if (prefix) syscall(SYS_arch_prctl, prefix == 0x64 ? ARCH_GET_FS : ARCH_GET_GS, &base);
    return base;
}

uintptr_t registers_address(const ucontext_t *context, const x86_instruction *instruction, uintptr_t next) {
    const x86_address *memory = &instruction->memory;
    uint64_t sum = (uint64_t)(int64_t)memory->displacement;
    if (memory->base != X86_NO_REGISTER) sum += memory->base == X86_RIP ? next : general(context, memory->base);
    if (memory->index != X86_NO_REGISTER) sum += general(context, memory->index) * memory->scale;
    if (memory->narrow) sum = (uint32_t)sum;
    return sum + segment_base(memory->segment);
}

uintptr_t registers_target(const ucontext_t *context, const x86_instruction *instruction, uintptr_t next) {
    if (instruction->source != X86_FROM_MEMORY) return registers_address(context, instruction, next);
    const uint64_t target = general(context, instruction->reg);
    return instruction->memory.narrow ? (uint32_t)target : target;
}

/* --- vector registers, as xsave lays them out in a signal's frame ------------------------------------------------------- */

enum { XMM_AT = 160, MMX_AT = 32, SOFTWARE_AT = 464, STATES_AT = 512, MAGIC = 0x46505853 };
enum { YMM_HIGH = 2, OPMASK = 5, ZMM_HIGH = 6, ZMM_16_TO_31 = 7, COMPONENTS = 8 };

/* Copy nbytes of an element of a component; zeros if it is in its initial state. Return false if the area is too
 * short. */
static bool component(const uint8_t *area, size_t area_bytes, int which, int element, size_t nbytes, uint8_t *into) {
    static struct {
        uint32_t size, offset;
    } known[COMPONENTS]; /* virtual machines take long for cpuid */
    uint32_t unused_1, unused_2;
    uint64_t states;
    memcpy(&states, area + STATES_AT, sizeof states);
    memset(into, 0, nbytes);
    if (!known[which].size &&
        !__get_cpuid_count(0x0D, (unsigned)which, &known[which].size, &known[which].offset, &unused_1, &unused_2))
        return false;
    if (!(states >> which & 1)) return true;
    const size_t at = known[which].offset + (size_t)element * nbytes;
    if ((size_t)(element + 1) * nbytes > known[which].size || at + nbytes > area_bytes) return false;
    memcpy(into, area + at, nbytes);
    return true;
}

bool registers_vector(const uint8_t *area, size_t area_bytes, int number, size_t nbytes, uint8_t bytes[64]) {
    if (number >= 16) return component(area, area_bytes, ZMM_16_TO_31, number - 16, 64, bytes);
    memcpy(bytes, area + XMM_AT + 16 * number, 16);
    if (nbytes > 16 && !component(area, area_bytes, YMM_HIGH, number, 16, bytes + 16)) return false;
    return nbytes <= 32 || component(area, area_bytes, ZMM_HIGH, number, 32, bytes + 32);
}

uint64_t registers_opmask(const uint8_t *area, size_t area_bytes, int number) {
    uint8_t bytes[8];
    uint64_t mask = 0;
    if (component(area, area_bytes, OPMASK, number, sizeof bytes, bytes)) memcpy(&mask, bytes, sizeof mask);
    return mask;
}

size_t registers_area_bytes(const uint8_t *frame) {
    uint32_t magic, nbytes;
    memcpy(&magic, frame + SOFTWARE_AT, sizeof magic);
    memcpy(&nbytes, frame + SOFTWARE_AT + 4, sizeof nbytes);
    return magic == MAGIC ? nbytes : STATES_AT;
}

static bool vector(const ucontext_t *context, int number, size_t nbytes, uint8_t bytes[64]) {
    const uint8_t *frame = (const uint8_t *)context->uc_mcontext.fpregs;
    return frame && registers_vector(frame, registers_area_bytes(frame), number, nbytes, bytes);
}

static bool mmx(const ucontext_t *context, int number, uint8_t bytes[64]) {
    const uint8_t *frame = (const uint8_t *)context->uc_mcontext.fpregs;
    if (frame) memcpy(bytes, frame + MMX_AT + 16 * (number & 7), 8);
    return frame != NULL;
}

bool registers_stored(const ucontext_t *context, const x86_instruction *instruction, uintptr_t next, uint8_t bytes[64],
                      bool stored[64]) {
    const size_t nbytes = instruction->nbytes;
    uint8_t mask[64];
    uint64_t word;
    memset(stored, true, 64);
    switch (instruction->source) {
    case X86_FROM_GENERAL:
        word = general(context, instruction->reg);
        memcpy(bytes, &word, sizeof word);
        return true;
    case X86_FROM_MMX: return mmx(context, instruction->reg, bytes);
    case X86_FROM_VECTOR: return vector(context, instruction->reg, nbytes, bytes);
    case X86_FROM_MEMORY: memcpy(bytes, (const void *)registers_address(context, instruction, next), 64); return true;
    default: break;
    }
    const bool wide = nbytes == 16;
    if (!(wide ? vector(context, instruction->reg, nbytes, bytes) : mmx(context, instruction->reg, bytes)))
        return false;
    if (!(wide ? vector(context, instruction->rm, nbytes, mask) : mmx(context, instruction->rm, mask))) return false;
    for (size_t k = 0; k < nbytes; k++) stored[k] = mask[k] >> 7;
    return true;
}

#endif
