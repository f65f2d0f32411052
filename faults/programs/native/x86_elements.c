#include "x86_elements.h"

enum encoding { LEGACY, VEX, EVEX };
typedef struct {
    enum encoding encoding;
    unsigned map, prefix; /* prefix: 0, 1 (66), 2 (f3), 3 (f2) */
    bool wide; /* W */
    uint8_t vector_bytes, opmask, other; /* other: the register that only a prefix names */
    uint8_t index_high; /* the upper bits of a vector index */
    uint8_t opcode, modrm, sib;
} parts;

static bool parts_of(const uint8_t *code, parts *p) {
    *p = (parts){.vector_bytes = 16};
    for (;; code++) {
        if (*code == 0x66) p->prefix = 1;
        else if (*code == 0xF3 || *code == 0xF2) p->prefix = 5u - (*code & 3);
        else if (*code >> 4 == 4) p->wide = *code & 8;
        else break;
    }
    if (*code == 0x0F) {
        p->map = code[1] == 0x38 ? 2 : 1;
        code += p->map;
    } else if (*code == 0xC5) {
        p->encoding = VEX, p->map = 1, p->prefix = code[1] & 3, p->vector_bytes = code[1] & 4 ? 32 : 16;
        p->other = (uint8_t)(~code[1] >> 3 & 15), code += 2;
    } else if (*code == 0xC4 || *code == 0x62) {
        p->encoding = *code == 0x62 ? EVEX : VEX;
        p->map = code[1] & (p->encoding == EVEX ? 7 : 31), p->prefix = code[2] & 3, p->wide = code[2] & 0x80;
        p->other = (uint8_t)(~code[2] >> 3 & 15), p->index_high = code[1] & 0x40 ? 0 : 8;
        p->vector_bytes = code[2] & 4 ? 32 : 16;
        if (p->encoding == EVEX) {
            p->vector_bytes = (uint8_t)(16 << (code[3] >> 5 & 3)), p->opmask = code[3] & 7;
            p->index_high |= code[3] & 8 ? 0 : 16;
        }
        code += p->encoding == EVEX ? 4 : 3;
    } else if (*code != 0xDB) { /* long double */
        return false;
    }
    p->opcode = code[0], p->modrm = code[1], p->sib = code[2];
    return p->modrm >> 6 != 3;
}

static void whole(x86_elements *e, unsigned nbytes) { e->count = 1, e->nbytes = (uint8_t)nbytes; }

static void cut(x86_elements *e, const parts *p, unsigned nbytes) {
    e->nbytes = (uint8_t)nbytes, e->count = (uint8_t)(p->vector_bytes / nbytes);
}

/* Moves of map 0f. */
static bool moves(const parts *p, x86_elements *e) {
    static const uint8_t wide[4] = {0, 8, 8, 2},
                         narrow[4] = {0, 4, 4, 1}; /* vmovdqa, vmovdqu, vmovdqu8 and 16, by prefix */
    e->stores = p->opcode & 1;
    switch (p->opcode) {
    case 0x12:
    case 0x13:
    case 0x16:
    case 0x17: whole(e, 8); return p->prefix < 2;
    case 0xF0: whole(e, p->vector_bytes); return p->prefix == 3;
    case 0x10:
    case 0x11:
    case 0x28:
    case 0x29: cut(e, p, p->prefix == 1 ? 8 : 4); return p->prefix < 2;
    case 0x7F:
    case 0x6F:
        if (p->prefix == 0) return false;
        cut(e, p, p->wide ? wide[p->prefix] : narrow[p->prefix]);
        e->stores = p->opcode == 0x7F;
        return true;
    default: return false;
    }
}

static bool long_double(const parts *p, x86_elements *e) {
    whole(e, 10), e->stores = (p->modrm >> 3 & 7) == 7;
    return p->modrm >> 3 & 4 && p->modrm >> 3 & 1; /* fld, fstp */
}

static void by_address(const parts *p, x86_elements *e) {
    const uint8_t data = p->wide ? 8 : 4;
    e->index_bytes = p->opcode & 1 ? 8 : 4;
    cut(e, p, e->index_bytes > data ? e->index_bytes : data);
    e->nbytes = data, e->displaced = data;
    e->index = (uint8_t)((p->sib >> 3 & 7) | p->index_high), e->scale = (uint8_t)(1 << (p->sib >> 6));
    e->stores = p->opcode >= 0xA0;
}

static bool of_map_38(const parts *p, x86_elements *e) {
    static const uint8_t broadcast[2] = {4, 8};
    const uint8_t op = p->opcode;
    switch (op) {
    case 0x2A: whole(e, p->vector_bytes); return true;
    case 0x18:
    case 0x19: whole(e, broadcast[op & 1]), e->displaced = e->nbytes; return true;
    case 0x1A:
    case 0x5A: whole(e, 16), e->displaced = 16; return true;
    case 0x1B:
    case 0x5B: whole(e, 32), e->displaced = 32; return true;
    case 0x2C:
    case 0x2D:
    case 0x2E:
    case 0x2F: cut(e, p, op & 1 ? 8 : 4), e->stores = op >= 0x2E, e->mask = X86_BY_VECTOR; return true;
    case 0x8C:
    case 0x8E: cut(e, p, p->wide ? 8 : 4), e->stores = op == 0x8E, e->mask = X86_BY_VECTOR; return true;
    case 0x90:
    case 0x91:
    case 0x92:
    case 0x93:
    case 0xA0:
    case 0xA1:
    case 0xA2:
    case 0xA3: by_address(p, e), e->mask = p->encoding == VEX ? X86_BY_VECTOR : X86_ALL; return true;
    case 0x62:
    case 0x63: cut(e, p, p->wide ? 2 : 1); break;
    case 0x88:
    case 0x89:
    case 0x8A:
    case 0x8B: cut(e, p, p->wide ? 8 : 4); break;
    default: return false;
    }
    e->packed = true, e->displaced = e->nbytes, e->stores = op == 0x63 || op >= 0x8A;
    return true;
}

bool x86_elements_of(const uint8_t *code, x86_elements *into) {
    parts p;
    *into = (x86_elements){0};
    if (!parts_of(code, &p)) return false;
    if (!(p.map == 0 ? long_double(&p, into) : p.map == 1 ? moves(&p, into) : p.map == 2 && of_map_38(&p, into)))
        return false;
    if (p.encoding == EVEX && !into->displaced) into->displaced = (uint8_t)(into->count * into->nbytes);
    if (p.encoding != EVEX || p.modrm >> 6 != 1) into->displaced = 0;
    if (into->mask == X86_BY_VECTOR) into->by = p.other;
    if (p.encoding == EVEX && p.opmask) into->mask = X86_BY_OPMASK, into->by = p.opmask;
    return true;
}
