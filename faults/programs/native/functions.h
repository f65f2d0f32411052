/* The functions of a program or library that is loaded, from the table that unwinders search (.eh_frame_hdr). What a file
 * says of itself is believed only where it agrees with itself and stays within what was loaded. */
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
    int64_t unknown; /* entries of the table that contradict themselves, or lie outside */
    bool has_table; /* without one, nothing is found */
} function_count;

/* Stop by returning false. */
typedef bool (*function_visitor)(const uint8_t *begin, const uint8_t *end, void *context);

/* False for a module with more segments than any has. */
bool loaded_module_from(uintptr_t base, const ElfW(Phdr) * headers, int count, loaded_module *into);

function_count functions_visit(const loaded_module *module, function_visitor visit, void *context);

#endif
