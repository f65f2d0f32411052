/* The functions of C++'s library that were compiled into a recompiled program, by its table of symbols. Without optimization they call
 * one another, and what they access is told at the program's line that calls the outermost one. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <link.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "self.h"

typedef struct {
    uintptr_t from, to;
} function;

static const char *const BEGINNINGS[] = {"_ZSt", "_ZNSt", "_ZNKSt", "_ZN9__gnu_cxx", "_ZNK9__gnu_cxx"};
enum { MOST = 1 << 15 };
static function functions[MOST]; /* in the order of their addresses */
static size_t count;

static bool is_of_library(const char *name) {
    for (size_t k = 0; k < sizeof BEGINNINGS / sizeof *BEGINNINGS; k++)
        if (strncmp(name, BEGINNINGS[k], strlen(BEGINNINGS[k])) == 0) return true;
    return false;
}

static void sort(void) {
    for (size_t gap = count / 2; gap; gap /= 2)
        for (size_t k = gap; k < count; k++) {
            const function its = functions[k];
            size_t at = k;
            for (; at >= gap && functions[at - gap].from > its.from; at -= gap) functions[at] = functions[at - gap];
            functions[at] = its;
        }
}

/* Return the part of a file, which is `size` bytes long, that a section names; NULL where it does not lie there. */
static const void *part(const uint8_t *file, size_t size, const ElfW(Shdr) * section) {
    return section->sh_offset <= size && section->sh_size <= size - section->sh_offset ? file + section->sh_offset
                                                                                       : NULL;
}

static void add_functions(const uint8_t *file, size_t size, uintptr_t base) {
    const ElfW(Ehdr) *head = (const void *)file;
    const ElfW(Shdr) all = {.sh_offset = head->e_shoff, .sh_size = head->e_shnum * sizeof all};
    const ElfW(Shdr) *sections = part(file, size, &all);
    for (int k = 0; sections && k < head->e_shnum; k++) {
        if (sections[k].sh_type != SHT_SYMTAB || sections[k].sh_link >= head->e_shnum) continue;
        const ElfW(Shdr) *strings = &sections[sections[k].sh_link];
        const ElfW(Sym) *symbol = part(file, size, &sections[k]);
        const char *names = part(file, size, strings);
        for (size_t left = sections[k].sh_size / sizeof *symbol; symbol && names && left-- && count < MOST; symbol++)
            if ((symbol->st_info & 15) == STT_FUNC && symbol->st_size && symbol->st_name < strings->sh_size &&
                is_of_library(names + symbol->st_name))
                functions[count++] = (function){base + symbol->st_value, base + symbol->st_value + symbol->st_size};
    }
    sort();
}

static int base_of_program(struct dl_phdr_info *info, size_t size, void *base) {
    (void)size;
    *(uintptr_t *)base = info->dlpi_addr;
    return 1; /* it comes first */
}

/* Before the server of a search waits, so that its forks have them. */
__attribute__((constructor(102))) static void search(void) {
    struct stat its;
    uintptr_t base = 0;
    if (!getenv("CXLEMU_PROGRAM_RUN") || !process_recompiled()) return;
    const int file = (int)syscall(SYS_openat, AT_FDCWD, "/proc/self/exe", O_RDONLY | O_CLOEXEC);
    if (file < 0) return;
    if (syscall(SYS_fstat, file, &its) == 0 && (size_t)its.st_size >= sizeof(ElfW(Ehdr))) {
        const size_t size = (size_t)its.st_size;
        void *at = (void *)syscall(SYS_mmap, NULL, size, PROT_READ, MAP_PRIVATE, file, 0L);
        dl_iterate_phdr(base_of_program, &base);
        if (at != MAP_FAILED) add_functions(at, size, base), syscall(SYS_munmap, at, size);
    }
    syscall(SYS_close, file);
}

bool library_has(const void *pc) {
    const uintptr_t at = (uintptr_t)pc - 1; /* the call, not what follows */
    size_t from = 0, to = count;
    while (from < to) {
        const size_t middle = (from + to) / 2;
        if (functions[middle].to <= at) from = middle + 1;
        else to = middle;
    }
    return from < count && functions[from].from <= at;
}
