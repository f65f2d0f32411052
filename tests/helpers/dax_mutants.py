"""Mistakes in the C that synchronizes real cards: of a file the text that is there, and what stands there instead."""

# ruff: noqa: E501

MUTANTS = {
    "FLUSH does nothing": ("executor.c", "if (r->op == FLUSH) lines_flush(", "if (r->op == FLUSH) (void)("),
    "INVALIDATE does nothing": ("executor.c", "else lines_invalidate(bytes_at", "else (void)(bytes_at"),
    "FLUSH and INVALIDATE do nothing": (
        "executor.c",
        "if (!(p->elides & (r->op == FLUSH ? ELIDE_FLUSH : ELIDE_INVALIDATE))) flush(p, r);",
        "(void)flush;",
    ),
    "FLUSH invalidates and INVALIDATE flushes": (
        "executor.c",
        "if (r->op == FLUSH) lines",
        "if (r->op != FLUSH) lines",
    ),
    "FLUSH forgets all cards but the first": (
        "executor.c",
        "for (int k = 0; k < count; k++) {\n        if (r->op == FLUSH)",
        "for (int k = 0; k < count && k < 1; k++) {\n        if (r->op == FLUSH)",
    ),
    "FLUSH leaves out a line": ("executor.c", "extents[k].nbytes, 0);", "extents[k].nbytes - LINE_BYTES, 0);"),
    "INVALIDATE leaves out a line": (
        "executor.c",
        "extents[k].nbytes);\n    }",
        "extents[k].nbytes - LINE_BYTES);\n    }",
    ),
    "FLUSH takes a line more": ("executor.c", "extents[k].nbytes, 0);", "extents[k].nbytes + LINE_BYTES, 0);"),
    "INVALIDATE takes a line more": (
        "executor.c",
        "extents[k].nbytes);\n    }",
        "extents[k].nbytes + LINE_BYTES);\n    }",
    ),
    "FENCE does nothing": ("executor.c", "if (!(p->elides & ELIDE_FENCE)) lines_fence();", "(void)0;"),
    "a doorbell is not flushed": ("executor.c", "if (!(p->elides & ELIDE_PUSH)) lines_flush(line, LINE_BYTES, 0);", ""),
    "a doorbell is flushed before it is rung": (
        "executor.c",
        "    atomic_store_explicit((_Atomic uint64_t *)line, doorbell_word(p, epoch), memory_order_release);\n    if (!(p->elides & ELIDE_PUSH)) lines_flush(line, LINE_BYTES, 0);",
        "    if (!(p->elides & ELIDE_PUSH)) lines_flush(line, LINE_BYTES, 0);\n    atomic_store_explicit((_Atomic uint64_t *)line, doorbell_word(p, epoch), memory_order_release);",
    ),
    "a doorbell is flushed before its payload is there": (
        "executor.c",
        "    if (r->op == SIGNAL_DATA) {",
        "    lines_flush(line, LINE_BYTES, 0);\n    if (r->op == SIGNAL_DATA) {",
    ),
    "a doorbell is fenced, which nobody asked for": (
        "executor.c",
        "lines_flush(line, LINE_BYTES, 0);\n}",
        "lines_flush(line, LINE_BYTES, 0), lines_fence();\n}",
    ),
    "no payload": ("executor.c", "memcpy(line + 8, piece(p, &r->a, 0, &run), (size_t)r->nbytes);", "(void)run;"),
    "another doorbell is rung": (
        "executor.c",
        "doorbell_place(p, r->arg, epoch));\n    if",
        "doorbell_place(p, r->arg ^ 1, epoch));\n    if",
    ),
    "a look invalidates nothing": (
        "executor.c",
        "if (!(p->elides & ELIDE_FETCH)) lines_invalidate(line, LINE_BYTES);",
        "",
    ),
    "a look flushes only": (
        "executor.c",
        "ELIDE_FETCH)) lines_invalidate(line, LINE_BYTES);",
        "ELIDE_FETCH)) lines_flush(line, LINE_BYTES, 0);",
    ),
    "a look is content with less": ("executor.c", "if (shows > wanted ||", "if (shows + 1 >= wanted ||"),
    "a group is its first doorbell": (
        "executor.c",
        "for (int32_t k = 0; k < g->count; k++) {",
        "for (int32_t k = 0; k < 1; k++) {",
    ),
    "WRITE stores past the cache": (
        "executor.c",
        "    case WRITE:\n    case READ: move(p, r); break;",
        "    case WRITE: move_nt(p, r); break;\n    case READ: move(p, r); break;",
    ),
    "WRITE_NT stores through the cache": ("executor.c", "else move_nt(p, r);", "else move(p, r);"),
    "extents end a byte early": (
        "address.c",
        "within).offset + 1 - from.offset};",
        "within).offset - 63 - from.offset};",
    ),
    "extents of a card end in their first granule": ("address.c", "last - (last - granule) % r->cards;", "granule;"),
}
