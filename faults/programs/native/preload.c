/* A program joins a run: this file has its code patched, and the libraries that it loads later. What is left to patch in
 * recompiled code was written as bytes. */
#define _GNU_SOURCE
#include "pages.h"
#include "self.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

void preload_begin(bool recompiled);

#if defined(__x86_64__)

#include "patch.h"
#include "traps.h"

#include <dlfcn.h>

static bool following;

static void tell(void) {
    const patch_totals total = patch_total();
    if (!getenv("CXLEMU_PROGRAM_SAY")) return;
    fprintf(
        stderr,
        "cxlemu: process %d: preloaded: %lld flushes, fences and locks in %d modules, found in %lld ms; %lld functions "
        "not understood, %lld modules without a table of functions\n",
        (int)getpid(), (long long)total.sites, total.modules, (long long)(total.microseconds / 1000),
        (long long)total.undecoded, (long long)total.without_table);
}

static void close_pools(void) {
    const program_options *options = &here.area->options;
    pools_closed = options->check && !options->free_running; /* threads side by side would miss each other's faults */
    if (!pools_closed) here.area->pages_hosts |= UINT64_C(1) << here.host;
    pages_begin();
}

void preload_begin(bool recompiled) {
    if (!recompiled) close_pools(), script_begin();
    traps_begin(!recompiled);
    following = true;
    patch_loaded();
    tell();
}

/* Patch a library that is loaded late when one of its functions is looked up, which is before it is called. dlopen
 * itself is not replaced, because it searches on behalf of its caller; neither is dlsym, which goes on in the C
 * library. */
__attribute__((used)) static void *real_dlsym_after_a_look(void) {
    static void *real;
    if (!real) real = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.34");
    if (!real) real = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
    if (!real) {
        fprintf(stderr, "cxlemu: this C library has no dlsym\n");
        _exit(2);
    }
    if (following) patch_loaded();
    return real;
}

__asm__(".text\n"
        ".globl dlsym\n"
        ".type dlsym, @function\n"
        "dlsym:\n"
        ".cfi_startproc\n"
        "pushq %rdi\n"
        ".cfi_adjust_cfa_offset 8\n"
        "pushq %rsi\n"
        ".cfi_adjust_cfa_offset 8\n"
        "subq $8, %rsp\n"
        ".cfi_adjust_cfa_offset 8\n"
        "call real_dlsym_after_a_look\n"
        "addq $8, %rsp\n"
        ".cfi_adjust_cfa_offset -8\n"
        "popq %rsi\n"
        ".cfi_adjust_cfa_offset -8\n"
        "popq %rdi\n"
        ".cfi_adjust_cfa_offset -8\n"
        "jmpq *%rax\n"
        ".cfi_endproc\n"
        ".size dlsym, . - dlsym\n");

#else

void preload_begin(bool recompiled) {
    if (recompiled) return;
    fprintf(stderr,
            "cxlemu: this program was not compiled with cxlemu cc, and only those of x86-64 can be followed as they "
            "are: compile it with CC=\"cxlemu cc\"\n");
    _exit(2);
}

#endif
