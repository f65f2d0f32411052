#include "x86.h"

#include <string.h>

/* What follows an opcode, one letter each:
 *   .  nothing              m  a ModRM byte and what it asks for    x  no such instruction in 64-bit mode
 *   b  8 bits    w  16      z  32, or 16 with prefix 66             v  as z, or 64 with REX.W
 *   o  an address of 64 bits, or 32 with prefix 67                  e  16 and 8 bits (enter)
 *   B  m and b   Z  m and z    j  a jump of 8 bits    J  of 32      t T  m, and b or z if its field reg is 0 or 1 (test)
 *   r  a ModRM byte that names registers whatever it says           p  a prefix or an escape, handled before */
static const char ONE_BYTE[] = "mmmmbzxxmmmmbzxp" /* 00 */
                               "mmmmbzxxmmmmbzxx" /* 10 */
                               "mmmmbzpxmmmmbzpx" /* 20 */
                               "mmmmbzpxmmmmbzpx" /* 30 */
                               "pppppppppppppppp" /* 40: REX */
                               "................" /* 50 */
                               "xxpmppppzZbB...." /* 60 */
                               "jjjjjjjjjjjjjjjj" /* 70 */
                               "BZxBmmmmmmmmmmmm" /* 80 */
                               "..........x....." /* 90 */
                               "oooo....bz......" /* a0 */
                               "bbbbbbbbvvvvvvvv" /* b0 */
                               "BBw.ppBZe.w..bx." /* c0 */
                               "mmmmxxx.mmmmmmmm" /* d0 */
                               "jjjjbbbbJJxj...." /* e0 */
                               "p.pp..tT......mm"; /* f0 */
static const char TWO_BYTES[] = "mmmmx.....x.xm.B" /* 0f 00 */
                                "mmmmmmmmmmmmmmmm" /* 0f 10 */
                                "rrrrxxxxmmmmmmmm" /* 0f 20 */
                                "......x.pxpxxxxx" /* 0f 30 */
                                "mmmmmmmmmmmmmmmm" /* 0f 40 */
                                "mmmmmmmmmmmmmmmm" /* 0f 50 */
                                "mmmmmmmmmmmmmmmm" /* 0f 60 */
                                "BBBBmmm.mmxxmmmm" /* 0f 70 */
                                "JJJJJJJJJJJJJJJJ" /* 0f 80 */
                                "mmmmmmmmmmmmmmmm" /* 0f 90 */
                                "...mBmxx...mBmmm" /* 0f a0 */
                                "mmmmmmmmmmBmmmmm" /* 0f b0 */
                                "mmBmBBBm........" /* 0f c0 */
                                "mmmmmmmmmmmmmmmm" /* 0f d0 */
                                "mmmmmmmmmmmmmmmm" /* 0f e0 */
                                "mmmmmmmmmmmmmmmm"; /* 0f f0 */

enum map { ONE, TWO, MAP_38, MAP_3A, OTHER_MAP };
enum encoding { LEGACY, VEX, EVEX, XOP };
enum { REX_W = 8, REX_R = 4, REX_X = 2, REX_B = 1 };

typedef struct {
    const uint8_t *code;
    size_t at, room; /* room: at most X86_LONGEST */
    bool operand_size, address_size, lock, f2, f3; /* prefixes, or what stands for them in VEX */
    uint8_t segment, rex, high_reg; /* high_reg: 16 for the upper half of the vector registers */
    enum encoding encoding;
    enum map map;
    uint8_t opcode, vector_bytes;
    int32_t scaled; /* the unit of a displacement of 8 bits, in bytes */
    uint8_t modrm;
} decoder;

static bool take(decoder *d, uint8_t *byte) {
    if (d->at >= d->room) return false;
    *byte = d->code[d->at++];
    return true;
}

static bool skip(decoder *d, size_t nbytes) {
    d->at += nbytes;
    return d->at <= d->room;
}

/* --- prefixes and the opcode ----------------------------------------------------------------------------------------- */

/* Read the prefixes, and the opcode's first byte into d->opcode. Return false where the bytes end before. */
static bool legacy_prefixes(decoder *d) {
    for (;;) {
        if (!take(d, &d->opcode)) return false;
        switch (d->opcode) {
        case 0x66: d->operand_size = true; break;
        case 0x67: d->address_size = true; break;
        case 0xF0: d->lock = true; break;
        case 0xF2: d->f2 = true, d->f3 = false; break; /* the last one counts */
        case 0xF3: d->f3 = true, d->f2 = false; break;
        case 0x64:
        case 0x65: d->segment = d->opcode; break;
        case 0x26:
        case 0x2E:
        case 0x36:
        case 0x3E: break; /* these segments begin at 0 */
        default:
            if (d->opcode >> 4 != 4) return true;
            d->rex = d->opcode; /* counts only right before the opcode */
            continue;
        }
        d->rex = 0;
    }
}

static void mandatory_prefix(decoder *d, unsigned pp) { d->operand_size = pp == 1, d->f3 = pp == 2, d->f2 = pp == 3; }

/* Read the rest of a VEX, EVEX or XOP prefix, whose bytes contain REX and the map, most of it inverted. */
static bool vector_prefix(decoder *d, uint8_t escape) {
    uint8_t p[3] = {0};
    const int count = escape == 0xC5 ? 1 : escape == 0x62 ? 3 : 2;
    if (d->rex || d->operand_size || d->lock || d->f2 || d->f3) return false;
    for (int k = 0; k < count; k++)
        if (!take(d, &p[k])) return false;
    unsigned map = 1, payload = p[0];
    d->encoding = escape == 0x62 ? EVEX : escape == 0x8F ? XOP : VEX;
    d->rex = p[0] & 0x80 ? 0 : REX_R;
    if (count > 1) {
        payload = p[1];
        map = p[0] & (d->encoding == EVEX ? 0x07 : 0x1F);
        d->rex |= (uint8_t)((p[0] & 0x40 ? 0 : REX_X) | (p[0] & 0x20 ? 0 : REX_B) | (payload & 0x80 ? REX_W : 0));
    }
    mandatory_prefix(d, payload & 3);
    d->vector_bytes = d->encoding == EVEX ? (uint8_t)(16 << (p[2] >> 5 & 3)) : payload & 4 ? 32 : 16;
    if (d->encoding == EVEX) d->scaled = d->vector_bytes, d->high_reg = p[0] & 0x10 ? 0 : 16;
    if (d->encoding == XOP) {
        if (map < 8 || map > 10) return false;
        d->map = OTHER_MAP;
        if (!take(d, &d->opcode)) return false;
        d->vector_bytes = map == 8 ? 1 : map == 9 ? 0 : 4; /* for XOP: how many bytes its immediate has */
        return true;
    }
    if (map < 1 || map > 6 || map == 4 || (map > 3 && d->encoding == VEX)) return false;
    d->map = map <= 3 ? (enum map)map : OTHER_MAP;
    return take(d, &d->opcode);
}

static bool opcode(decoder *d) {
    if (!legacy_prefixes(d)) return false;
    const uint8_t first = d->opcode;
    /* 8f is pop where the field reg of its ModRM byte is 0 */
    const bool is_xop = first == 0x8F && d->at < d->room && (d->code[d->at] & 0x1F) >= 8;
    if (first == 0xC4 || first == 0xC5 || first == 0x62 || is_xop) return vector_prefix(d, first);
    if (first != 0x0F) return true;
    if (!take(d, &d->opcode)) return false;
    d->map = d->opcode == 0x38 ? MAP_38 : d->opcode == 0x3A ? MAP_3A : TWO;
    return d->map == TWO || take(d, &d->opcode);
}

/* Return the letter of the legend above that describes the opcode. */
static char operands(const decoder *d) {
    if (d->encoding == LEGACY) {
        const bool two_immediates = d->map == TWO && d->opcode == 0x78 &&
                                    (d->operand_size || d->f2); /* extrq, insertq */
        if (two_immediates) return 'E';
        return d->map == ONE      ? ONE_BYTE[d->opcode]
               : d->map == TWO    ? TWO_BYTES[d->opcode]
               : d->map == MAP_3A ? 'B'
                                  : 'm';
    }
    if (d->map == TWO) {
        const char letter = TWO_BYTES[d->opcode];
        return letter == 'B' && d->opcode != 0x0F ? 'B' : d->opcode == 0x77 && d->encoding == VEX ? '.' : 'm';
    }
    if (d->encoding == XOP) return d->vector_bytes == 1 ? 'B' : d->vector_bytes == 0 ? 'm' : 'D';
    return d->map == MAP_3A ? 'B' : 'm';
}

/* --- ModRM ------------------------------------------------------------------------------------------------------------- */

static int32_t number(const uint8_t *bytes, size_t nbytes) {
    int32_t value;
    if (nbytes == 1) return (int8_t)bytes[0];
    memcpy(&value, bytes, sizeof value);
    return value;
}

static bool modrm(decoder *d, bool registers_only, x86_instruction *into) {
    uint8_t sib = 0;
    if (!take(d, &d->modrm)) return false;
    const unsigned mod = d->modrm >> 6, rm = d->modrm & 7;
    if (mod == 3 || registers_only) return true;
    x86_address *memory = &into->memory;
    size_t displaced = mod == 1 ? 1 : mod == 2 ? 4 : 0;
    *memory = (x86_address){.base = (int8_t)(rm | (d->rex & REX_B ? 8 : 0)),
                            .index = X86_NO_REGISTER,
                            .scale = 1,
                            .narrow = d->address_size,
                            .segment = d->segment};
    into->has_memory = true;
    if (rm == 4) {
        if (!take(d, &sib)) return false;
        const int index = (sib >> 3 & 7) | (d->rex & REX_X ? 8 : 0);
        memory->base = (int8_t)((sib & 7) | (d->rex & REX_B ? 8 : 0));
        if (index != 4) memory->index = (int8_t)index, memory->scale = (uint8_t)(1 << (sib >> 6));
        if (mod == 0 && (sib & 7) == 5) memory->base = X86_NO_REGISTER, displaced = 4;
    } else if (mod == 0 && rm == 5) {
        memory->base = X86_RIP, displaced = 4;
        into->displacement_at = (uint8_t)d->at;
    }
    const size_t at = d->at;
    if (!skip(d, displaced)) return false;
    if (displaced) memory->displacement = number(d->code + at, displaced) * (displaced == 1 ? d->scaled : 1);
    return true;
}

/* --- what it is ---------------------------------------------------------------------------------------------------------- */

static uint8_t operand_bytes(const decoder *d) { return d->rex & REX_W ? 8 : d->operand_size ? 2 : 4; }

static enum x86_kind group_15(const decoder *d, bool memory) {
    const unsigned reg = d->modrm >> 3 & 7;
    if (d->f2 || d->f3) return X86_OTHER;
    if (memory && reg == 7) return d->operand_size ? X86_CLFLUSHOPT : X86_CLFLUSH;
    if (memory && reg == 6 && d->operand_size) return X86_CLWB;
    if (memory || d->operand_size) return X86_OTHER;
    return reg == 5 ? X86_LFENCE : reg == 6 ? X86_MFENCE : reg == 7 ? X86_SFENCE : X86_OTHER;
}

/* Return how many bytes an xchg, or an instruction with a lock prefix, stores. */
static uint8_t locked_bytes(const decoder *d) {
    if (d->map == TWO && d->opcode == 0xC7) return d->rex & REX_W ? 16 : 8; /* cmpxchg8b, cmpxchg16b */
    const bool bytes = d->map == ONE ? !(d->opcode & 1) : d->opcode == 0xB0 || d->opcode == 0xC0;
    return bytes ? 1 : operand_bytes(d);
}

static uint8_t nt_store_bytes(const decoder *d) {
    if (d->encoding == XOP) return 0;
    if (d->map == MAP_38) { /* movdiri, movdir64b */
        if (d->encoding != LEGACY || d->f2 || d->f3) return 0;
        return d->opcode == 0xF9 && !d->operand_size ? operand_bytes(d) : d->opcode == 0xF8 && d->operand_size ? 64 : 0;
    }
    if (d->map != TWO) return 0;
    if (d->encoding != LEGACY) return (d->opcode == 0xE7 && d->operand_size) || d->opcode == 0x2B ? d->vector_bytes : 0;
    switch (d->opcode) {
    case 0xC3: return d->operand_size || d->f2 || d->f3 ? 0 : operand_bytes(d); /* movnti */
    case 0x2B: return d->f3 ? 4 : d->f2 ? 8 : 16; /* movntps, movntpd; movntss, movntsd */
    case 0xE7: return d->f2 || d->f3 ? 0 : d->operand_size ? 16 : 8; /* movntdq, movntq */
    default: return 0;
    }
}

/* maskmovdqu and maskmovq name no memory: they store where rdi points to. */
static bool is_masked(const decoder *d) {
    return d->map == TWO && d->opcode == 0xF7 && !d->f2 && !d->f3 && d->modrm >> 6 == 3 &&
           (d->encoding == VEX ? d->operand_size : d->encoding == LEGACY);
}

static void non_temporal(const decoder *d, x86_instruction *into) {
    into->kind = X86_NT_STORE;
    into->reg = (uint8_t)((d->modrm >> 3 & 7) | (d->rex & REX_R ? 8 : 0) | d->high_reg);
    into->rm = (uint8_t)((d->modrm & 7) | (d->rex & REX_B ? 8 : 0));
    const bool general = d->map == MAP_38 || d->opcode == 0xC3;
    const bool mmx = d->encoding == LEGACY && d->opcode == 0xE7 && !d->operand_size;
    into->source = into->nbytes == 64 && d->map == MAP_38 ? X86_FROM_MEMORY
                   : general                              ? X86_FROM_GENERAL
                   : mmx                                  ? X86_FROM_MMX
                                                          : X86_FROM_VECTOR;
}

static void classify(const decoder *d, x86_instruction *into) {
    const bool xchg = d->encoding == LEGACY && d->map == ONE && (d->opcode & 0xFE) == 0x86;
    if (d->map == TWO && d->opcode == 0xAE && d->encoding == LEGACY) {
        into->kind = group_15(d, into->has_memory);
    } else if (into->has_memory && (d->lock || xchg)) {
        into->kind = X86_LOCKED, into->nbytes = locked_bytes(d);
        into->compares = d->map == TWO && (d->opcode == 0xB0 || d->opcode == 0xB1 || d->opcode == 0xC7);
    } else if (is_masked(d)) {
        non_temporal(d, into);
        into->source = X86_MASKED, into->has_memory = true;
        into->nbytes = d->encoding == VEX || d->operand_size ? 16 : 8;
        into->memory = (x86_address){
            .base = X86_RDI, .index = X86_NO_REGISTER, .scale = 1, .narrow = d->address_size, .segment = d->segment};
    } else if (into->has_memory && (into->nbytes = nt_store_bytes(d))) {
        non_temporal(d, into);
    }
}

static bool has_modrm(char letter) {
    switch (letter) {
    case 'm':
    case 'B':
    case 'Z':
    case 'D':
    case 'E':
    case 'r':
    case 't':
    case 'T': return true;
    default: return false;
    }
}

static bool immediates(decoder *d, char letter, x86_instruction *into) {
    const size_t z = d->operand_size && !(d->rex & REX_W) ? 2 : 4;
    const bool is_test = (d->modrm >> 3 & 7) < 2;
    switch (letter) {
    case 'j': into->branch = X86_REL8; return skip(d, 1);
    case 'J': into->branch = X86_REL32; return skip(d, 4);
    case 'b':
    case 'B': return skip(d, 1);
    case 'w':
    case 'E': return skip(d, 2);
    case 'D': return skip(d, 4);
    case 'e': return skip(d, 3);
    case 'z':
    case 'Z': return skip(d, z);
    case 'v': return skip(d, d->rex & REX_W ? 8 : z);
    case 'o': return skip(d, d->address_size ? 4 : 8);
    case 't': return !is_test || skip(d, 1);
    case 'T': return !is_test || skip(d, z);
    default: return true;
    }
}

bool x86_decode(const uint8_t *code, size_t room, x86_instruction *into) {
    decoder d = {.code = code, .room = room < X86_LONGEST ? room : X86_LONGEST, .scaled = 1};
    memset(into, 0, sizeof *into);
    if (!opcode(&d)) return false;
    const char letter = operands(&d);
    if (letter == 'x' || letter == 'p') return false;
    if (has_modrm(letter) && !modrm(&d, letter == 'r', into)) return false;
    if (!immediates(&d, letter, into)) return false;
    into->length = (uint8_t)d.at;
    classify(&d, into);
    return true;
}

/* --- a quick look -------------------------------------------------------------------------------------------------------- */

/* Return whether an instruction that may have a lock prefix can begin here. */
static bool may_be_locked(const uint8_t *code, size_t nbytes) {
    size_t k = 0;
    while (k < nbytes && (code[k] >> 4 == 4 || code[k] == 0x66)) k++;
    if (k == nbytes) return false;
    const uint8_t first = code[k];
    return first == 0x0F || (first >= 0x80 && first <= 0x87) || first == 0xF6 || first == 0xF7 || first >= 0xFE ||
           (first < 0x38 && (first & 7) < 2);
}

/* Return whether an opcode of map 0f can stand `at` bytes into code: behind 0f, or behind a VEX or EVEX that stands for
 * prefix 66 or for none. */
static bool may_be_vector(const uint8_t *code, size_t at) {
    return code[at - 1] == 0x0F || (at >= 2 && code[at - 2] == 0xC5 && (code[at - 1] & 3) < 2) ||
           (at >= 3 && code[at - 3] == 0xC4 && (code[at - 1] & 3) < 2) ||
           (at >= 4 && code[at - 4] == 0x62 && (code[at - 2] & 3) < 2);
}

static bool may_be_flush_or_store(const uint8_t *code, size_t at) {
    const uint8_t before = code[at - 1], modrm = code[at + 1];
    switch (code[at]) {
    case 0x05: return before == 0x0F; /* syscall */
    case 0xAE: return before == 0x0F && (modrm >> 3 & 7) >= 5;
    case 0xC3: return before == 0x0F && modrm < 0xC0; /* movnti */
    case 0xF8: /* movdir64b, movdiri */
    case 0xF9: return before == 0x38 && modrm < 0xC0;
    case 0x2B: /* movntps and the like, movntdq, maskmovdqu */
    case 0xE7: return modrm < 0xC0 && may_be_vector(code, at);
    case 0xF7: return modrm >= 0xC0 && may_be_vector(code, at);
    default: return false;
    }
}

bool x86_candidate(const uint8_t *code, size_t nbytes, bool locked) {
    static const bool may_be[256] = {[0xAE] = true, [0xC3] = true, [0xF8] = true, [0xF9] = true,
                                     [0x2B] = true, [0xE7] = true, [0xF7] = true, [0x05] = true};
    for (size_t k = 1; k + 1 < nbytes; k++)
        if (may_be[code[k]] && may_be_flush_or_store(code, k)) return true;
    for (size_t k = 0; locked && k + 1 < nbytes; k++) {
        if (code[k] == 0xF0 && may_be_locked(code + k + 1, nbytes - k - 1)) return true;
        if ((code[k] == 0x86 || code[k] == 0x87) && code[k + 1] < 0xC0) return true; /* xchg with memory */
    }
    return false;
}
