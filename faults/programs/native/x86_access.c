#include "x86_access.h"

enum map { ONE, TWO, MAP_38, MAP_3A };
enum { REX_W = 8, REX_R = 4 };

typedef struct {
    bool operand_size, f2, f3, rex_seen, vector, broadcast; /* vector: VEX or EVEX */
    uint8_t rex, vector_bytes, opcode, modrm;
    enum map map;
} parts;

/* --- the parts of an instruction, whose bytes x86_decode has checked ---------------------------------------------- */

static void mandatory(parts *p, unsigned pp) { p->operand_size = pp == 1, p->f3 = pp == 2, p->f2 = pp == 3; }

static const uint8_t *after_vex(parts *p, const uint8_t *code) {
    const uint8_t escape = *code++;
    p->vector = true;
    p->rex = code[0] & 0x80 ? 0 : REX_R;
    if (escape == 0xC5) {
        mandatory(p, code[0] & 3), p->vector_bytes = code[0] & 4 ? 32 : 16, p->map = TWO;
        return code + 1;
    }
    p->map = (code[0] & 7) == 3 ? MAP_3A : (code[0] & 7) == 2 ? MAP_38 : TWO;
    p->rex |= code[1] & 0x80 ? REX_W : 0;
    mandatory(p, code[1] & 3);
    p->vector_bytes = escape == 0x62 ? (uint8_t)(16 << (code[2] >> 5 & 3)) : code[1] & 4 ? 32 : 16;
    p->broadcast = escape == 0x62 && code[2] & 0x10;
    return code + (escape == 0x62 ? 3 : 2);
}

static parts parts_of(const uint8_t *code) {
    parts p = {.vector_bytes = 16};
    for (;; code++) {
        if (*code == 0x66) p.operand_size = true;
        else if (*code == 0xF2) p.f2 = true, p.f3 = false;
        else if (*code == 0xF3) p.f3 = true, p.f2 = false;
        else if (*code >> 4 == 4) p.rex = *code, p.rex_seen = true;
        else if (*code != 0x67 && *code != 0xF0 && *code != 0x26 && *code != 0x2E && *code != 0x36 && *code != 0x3E &&
                 *code != 0x64 && *code != 0x65)
            break;
    }
    if (*code == 0xC4 || *code == 0xC5 || *code == 0x62) {
        code = after_vex(&p, code);
    } else if (*code == 0x0F) {
        p.map = code[1] == 0x38 ? MAP_38 : code[1] == 0x3A ? MAP_3A : TWO;
        code += p.map == TWO ? 1 : 2;
    }
    p.opcode = code[0], p.modrm = code[1];
    return p;
}

/* --- how many bytes ------------------------------------------------------------------------------------------------------ */

static uint8_t general(const parts *p) { return p->rex & REX_W ? 8 : p->operand_size ? 2 : 4; }
static uint8_t scalar(const parts *p) { return p->f3 ? 4 : p->f2 ? 8 : p->vector_bytes; }
static unsigned field(const parts *p) { return p->modrm >> 3 & 7; }

static uint8_t bytes_one(const parts *p) {
    const uint8_t op = p->opcode;
    if (op >= 0xD8 && op <= 0xDF) { /* x87 */
        if (op == 0xDB && field(p) >= 5) return 10;
        if ((op == 0xD9 && field(p) >= 5) || (op == 0xDD && field(p) == 7)) return 2;
        return op == 0xDF && field(p) < 4 ? 2 : op >= 0xDC ? 8 : 4;
    }
    if (op == 0x63) return 4;
    if (op == 0x8F || (op == 0xFF && field(p) >= 2)) return 8;
    return op & 1 || op == 0xC4 || op == 0x62 ? general(p) : 1;
}

static uint8_t bytes_two(const parts *p) {
    const uint8_t op = p->opcode;
    if (p->vector && (op == 0x90 || op == 0x91)) /* kmov */
        return p->rex & REX_W ? (p->operand_size ? 4 : 8) : (p->operand_size ? 1 : 2);
    if (op == 0xB6 || op == 0xBE || op == 0xB0 || op == 0xC0 || op >> 4 == 9) return 1;
    if (op == 0xB7 || op == 0xBF) return 2;
    if (op == 0xC7) return p->rex & REX_W ? 16 : 8;
    if (op == 0xC4) return 2;
    if (op == 0xAE) return 4;
    if (op >> 4 == 4 || (op >> 4 == 0xA && op != 0xAE) || op >> 4 == 0xB || op == 0xC1 || op == 0xC3) return general(p);
    if (op == 0x12 && (p->f2 || p->f3)) return p->f2 ? 8 : p->vector_bytes;
    if ((op == 0x12 || op == 0x13 || op == 0x16 || op == 0x17) && !p->f3) return 8;
    if (op == 0x6E || (op == 0x7E && !p->f3)) return p->rex & REX_W ? 8 : 4;
    if (op == 0x7E || op == 0xD6) return 8;
    if (op == 0x2A && (p->f2 || p->f3)) return p->rex & REX_W ? 8 : 4;
    if (op == 0x2E || op == 0x2F) return p->operand_size ? 8 : 4;
    if (op == 0x5A && !p->f2 && !p->f3) return p->operand_size ? p->vector_bytes : p->vector_bytes / 2;
    if (op == 0xE6 && p->f3) return p->vector_bytes / 2;
    const bool whole = op == 0x5B || op == 0xE6 || op == 0xD0 || op == 0x7C || op == 0x7D || op == 0xF0;
    if (whole || op == 0x16) return p->vector_bytes; /* here a prefix selects the operation, not the size */
    if (op == 0x70 || op == 0x6F || op == 0x7F) return p->f2 || p->f3 || p->operand_size ? p->vector_bytes : 8;
    const bool integers = (op >= 0x60 && op < 0x80) || op >= 0xD0;
    if (integers && !p->vector && !p->operand_size && !p->f2 && !p->f3) return 8; /* MMX */
    return scalar(p);
}

/* Return whether it is a gather or a scatter, with an address per element. */
static bool is_gather(const parts *p) { return (p->opcode & 0xFC) == 0x90 || (p->opcode & 0xFC) == 0xA0; }

static uint8_t bytes_38(const parts *p) {
    static const uint8_t widened[6] = {2, 4, 8, 2, 4, 2}; /* pmovsx, pmovzx: which fraction of a vector they load */
    const uint8_t op = p->opcode;
    if ((op >> 4 == 2 || op >> 4 == 3) && (op & 15) < 6) return p->vector_bytes / widened[op & 15];
    if (is_gather(p)) return p->rex & REX_W ? 8 : 4;
    if (op == 0x13) return p->vector_bytes / 2;
    if (op >= 0x99 && op <= 0xBF && op & 1 && (op & 15) >= 9) return p->rex & REX_W ? 8 : 4; /* FMA of one element */
    if (op == 0x18 || op == 0x58) return 4;
    if (op == 0x19 || op == 0x59) return 8;
    if (op == 0x1A || op == 0x5A) return 16;
    if (op == 0x78) return 1;
    if (op == 0x79) return 2;
    if (op == 0xF0 && p->f2) return 1;
    if (op >= 0xF0 && p->vector) return p->rex & REX_W ? 8 : 4;
    return op >= 0xF0 ? general(p) : p->vector_bytes;
}

static uint8_t bytes_3a(const parts *p) {
    switch (p->opcode) {
    case 0x14:
    case 0x20: return 1;
    case 0x15: return 2;
    case 0x16:
    case 0x22: return p->rex & REX_W ? 8 : 4;
    case 0x6A: /* FMA4 of one element */
    case 0x6E:
    case 0x7A:
    case 0x7E:
    case 0x0A:
    case 0x17:
    case 0x21: return 4;
    case 0x6B:
    case 0x6F:
    case 0x7B:
    case 0x7F:
    case 0x0B: return 8;
    case 0x18:
    case 0x19:
    case 0x38:
    case 0x39: return 16;
    case 0xF0: return general(p);
    default: return p->vector_bytes;
    }
}

/* --- how it uses its base register -------------------------------------------------------------------------------- */

enum register_use { NO_GENERAL, REPLACES, READS }; /* of the field reg: none, only stored to, anything */

/* Find how an instruction uses the register of its field reg. Return false where it may use registers that it does not
 * name. */
static bool use_of(const parts *p, enum register_use *use) {
    const uint8_t op = p->opcode;
    *use = READS;
    if (p->map == MAP_38) {
        *use = NO_GENERAL;
        return op < 0xF0 && !is_gather(p);
    }
    if (p->map == MAP_3A) {
        *use = NO_GENERAL;
        return op < 0xF0 && (op < 0x60 || op > 0x63); /* those compare strings */
    }
    if (p->map == TWO) {
        const bool extends = op == 0xB6 || op == 0xB7 || op == 0xBE || op == 0xBF;
        if (extends) *use = general(p) >= 4 ? REPLACES : READS;
        if (extends || op >> 4 == 4 || op == 0xAF || op == 0x2C || op == 0x2D || op == 0xC1 || op == 0xC0) return true;
        *use = NO_GENERAL;
        return (op >= 0x10 && op < 0x18) || (op >= 0x28 && op < 0x30) || (op >= 0x51 && op < 0x80) || op >> 4 == 9 ||
               (op >= 0xC2 && op != 0xC3 && op < 0xC7) || op >= 0xD0;
    }
    if (op < 0x40 && (op & 7) < 4) return true;
    if (op == 0x8A || op == 0x8B || op == 0x63) *use = op != 0x8A && general(p) >= 4 ? REPLACES : READS;
    if ((op >= 0x84 && op <= 0x8B) || op == 0x63) return true;
    *use = NO_GENERAL;
    if (op == 0x80 || op == 0x81 || op == 0x83 || op == 0xC6 || op == 0xC7) return true;
    if (op == 0xC0 || op == 0xC1 || op == 0xD0 || op == 0xD1) return true;
    if (op == 0xF6 || op == 0xF7) return field(p) < 4;
    return (op == 0xFE || op == 0xFF) && field(p) < 2;
}

/* Return whether an instruction that stores first loads the old bytes. */
static bool changes(const parts *p) {
    const uint8_t op = p->opcode;
    if (p->map == TWO) return op == 0xAB || op == 0xB3 || op == 0xBB || op == 0xBA || op == 0xA4 || op == 0xA5;
    if (p->map != ONE) return false;
    return op < 0x40 || (op >= 0x80 && op <= 0x83) || op == 0xC0 || op == 0xC1 || (op >= 0xD0 && op <= 0xD3) ||
           op == 0xF6 || op == 0xF7 || op == 0xFE || op == 0xFF;
}

static enum x86_string string_of(uint8_t of_words) {
    switch (of_words) {
    case 0xA5: return X86_MOVS;
    case 0xA7: return X86_CMPS;
    case 0xAB: return X86_STOS;
    case 0xAD: return X86_LODS;
    case 0xAF: return X86_SCAS;
    default: return X86_NO_STRING;
    }
}

x86_access x86_access_of(const uint8_t *code, const x86_instruction *instruction) {
    const parts p = parts_of(code);
    const x86_address *memory = &instruction->memory;
    x86_access access = {.loads = changes(&p)};
    enum register_use use;
    if (p.map == ONE && !p.vector) access.string = string_of(p.opcode | 1);
    access.repeats = p.f2 || p.f3;
    access.nbytes = p.broadcast    ? (p.rex & REX_W ? 8 : 4)
                    : p.map == ONE ? bytes_one(&p)
                    : p.map == TWO ? bytes_two(&p)
                                   : (p.map == MAP_38 ? bytes_38 : bytes_3a)(&p);
    if (!instruction->has_memory || access.string || !use_of(&p, &use)) return access;
    int reg = (int)field(&p) | (p.rex & REX_R ? 8 : 0);
    const bool byte = p.map == ONE && (p.opcode < 0x40 || p.opcode >> 4 == 8) && !(p.opcode & 1);
    if (byte && !p.rex_seen && reg >= 4) reg -= 4; /* ah, ch, dh, bh */
    if (memory->base < 0 || memory->base > 15 || memory->base == memory->index || memory->narrow || memory->segment)
        return access;
    const bool same = use != NO_GENERAL && reg == memory->base;
    access.movable = !same || use == REPLACES;
    access.replaces_base = same && use == REPLACES;
    return access;
}
