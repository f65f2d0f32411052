/* The functions of a loaded program or library, from the table that unwinders search (.eh_frame_hdr). An entry counts
 * only where it agrees with .eh_frame and lies within the loaded segments. */
#ifndef CXLEMU_FUNCTIONS_H
#define CXLEMU_FUNCTIONS_H

#include <link.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { MAX_SEGMENTS = 32 };

typedef struct {
    const uint8_t *begin, *end;
    bool readable, executable;
} segment;

typedef struct {
    segment segments[MAX_SEGMENTS];
    int32_t segment_count;
    const uint8_t *table; /* .eh_frame_hdr, or NULL */
    size_t table_bytes;
} loaded_module;

typedef struct {
    int64_t functions, bytes; /* found, and how much code they are */
    int64_t unknown; /* entries of the table that contradict .eh_frame, or lie outside of the module */
    bool has_table; /* without one, nothing is found */
} function_count;

/* Called for each function; returns false to stop. */
typedef bool (*function_visitor)(const uint8_t *begin, const uint8_t *end, void *context);

/* Describe a module from its program headers. Return false where it has more segments than any real one. */
bool loaded_module_from(uintptr_t base, const ElfW(Phdr) * headers, int count, loaded_module *into);

function_count functions_visit(const loaded_module *module, function_visitor visit, void *context);

#endif
