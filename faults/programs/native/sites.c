/* Numbers for places in programs, the same in all processes of a run. */
#define _GNU_SOURCE
#include <link.h>
#include <string.h>
#include <unistd.h>

#include "patch.h"
#include "self.h"

enum { LOADED = 256 };

typedef struct {
    uintptr_t from, to, base;
    uint16_t module;
} loaded;

static loaded known[LOADED]; /* modules of this process */
static int known_count;

static uint16_t module_number(const char *path) {
    program_area *a = here.area;
    for (uint32_t k = 1; k < a->module_count; k++)
        if (strncmp(a->modules[k].path, path, PROGRAM_PATH - 1) == 0) return (uint16_t)k;
    if (a->module_count == 0) a->module_count = 1; /* 0 is unknown */
    if (a->module_count == PROGRAM_MODULES) return 0;
    memcpy(a->modules[a->module_count].path, path, strnlen(path, PROGRAM_PATH - 1)); /* zeros follow */
    return (uint16_t)a->module_count++;
}

static int add_module(struct dl_phdr_info *info, size_t size, void *unused) {
    char itself[PROGRAM_PATH] = "";
    (void)size, (void)unused;
    const char *path = info->dlpi_name;
    if (!path[0]) {
        const ssize_t length = readlink("/proc/self/exe", itself, sizeof itself - 1);
        itself[length > 0 ? length : 0] = 0, path = itself;
    }
    for (int k = 0; k < info->dlpi_phnum && known_count < LOADED; k++) {
        const ElfW(Phdr) *part = &info->dlpi_phdr[k];
        if (part->p_type != PT_LOAD || !(part->p_flags & PF_X)) continue;
        const uintptr_t from = info->dlpi_addr + part->p_vaddr;
        known[known_count++] = (loaded){from, from + part->p_memsz, info->dlpi_addr, module_number(path)};
    }
    return 0;
}

static const loaded *module_of(uintptr_t at) {
    for (int again = 0; again < 2; again++) {
        for (int k = 0; k < known_count; k++)
            if (at - known[k].from < known[k].to - known[k].from) return &known[k];
        known_count = 0;
        dl_iterate_phdr(add_module, NULL);
    }
    return NULL;
}

/* Look for TSan's functions among the undefined symbols of a module, which come first in its table. */
bool module_recompiled(const struct dl_phdr_info *info) {
    const ElfW(Sym) *symbols = NULL;
    const char *names = NULL;
    const uint32_t *hashes = NULL;
    for (int k = 0; k < info->dlpi_phnum; k++) {
        if (info->dlpi_phdr[k].p_type != PT_DYNAMIC) continue;
        const ElfW(Dyn) *entry = (const ElfW(Dyn) *)(info->dlpi_addr + info->dlpi_phdr[k].p_vaddr);
        for (; entry->d_tag != DT_NULL; entry++) {
            if (entry->d_tag == DT_SYMTAB) symbols = (const ElfW(Sym) *)entry->d_un.d_ptr;
            if (entry->d_tag == DT_STRTAB) names = (const char *)entry->d_un.d_ptr;
            if (entry->d_tag == DT_GNU_HASH) hashes = (const uint32_t *)entry->d_un.d_ptr + 1;
            if (entry->d_tag == DT_HASH && !hashes) hashes = (const uint32_t *)entry->d_un.d_ptr + 1;
        }
    }
    for (uint32_t k = 1; symbols && names && hashes && k < *hashes; k++)
        if (strcmp(names + symbols[k].st_name, "__tsan_init") == 0) return true;
    return false;
}

/* Look at the first module, the program itself. Both results end the walk. */
static int look_at_program(struct dl_phdr_info *info, size_t size, void *unused) {
    (void)size, (void)unused;
    return module_recompiled(info) ? 2 : 1;
}

bool process_recompiled(void) {
    static int found; /* 0: not searched yet */
    if (!found) found = dl_iterate_phdr(look_at_program, NULL);
    return found == 2;
}

static void place_of(const void *at, uint16_t *module, uint32_t *offset) {
    const uintptr_t address = (uintptr_t)at - 1; /* of the call, not of what follows */
    const loaded *found = at ? module_of(address) : NULL;
    *module = found ? found->module : 0;
    *offset = found ? (uint32_t)(address - found->base) : 0;
}

static program_site number_of(program_place its) {
    program_area *a = here.area;
    if (!its.module) return 0;
    uint64_t hash = its.offset * UINT64_C(0x9E3779B97F4A7C15) ^ its.caller_offset * UINT64_C(0xBF58476D1CE4E5B9) ^
                    (uint64_t)its.module << 48;
    hash ^= hash >> 29;
    for (uint32_t tries = 0;; tries++) { /* few places lie side by side, in few pages */
        const uint32_t slots = tries < 8 ? 512 : 2 * PROGRAM_SITES;
        uint32_t *slot = &a->site_slots[(hash + tries) % slots];
        if (*slot && memcmp(&a->sites[*slot], &its, sizeof its) == 0) return *slot;
        if (*slot) continue;
        if (a->site_count == 0) a->site_count = 1; /* 0 is unknown */
        if (a->site_count == PROGRAM_SITES) return 0;
        *slot = a->site_count++;
        a->sites[*slot] = its;
        return *slot;
    }
}

program_site program_site_of(const void *pc, const void *caller) {
    program_place its;
    memset(&its, 0, sizeof its);
    place_of(pc, &its.module, &its.offset);
    place_of(caller, &its.caller_module, &its.caller_offset);
    return number_of(its);
}

program_site program_site_in(const char *name, uint32_t line) {
    program_place its;
    memset(&its, 0, sizeof its);
    its.module = module_number(name), its.offset = line;
    return number_of(its);
}

void program_report(const program_finding *finding) {
    program_area *a = here.area;
    for (uint32_t k = 0; k < a->finding_count; k++) {
        program_finding *told = &a->findings[k];
        if (told->kind != finding->kind || told->rule != finding->rule ||
            memcmp(told->sites, finding->sites, sizeof told->sites) != 0)
            continue;
        told->times += finding->times;
        return;
    }
    if (a->finding_count == PROGRAM_FINDINGS) return;
    a->findings[a->finding_count++] = *finding;
}
