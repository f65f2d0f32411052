/* Lines of Python scripts. An access that the interpreter or one of its libraries makes is at the line of the innermost frame that is
 * the script's own: neither a library's nor cxlemu.program's. Only functions of Python's stable interface are called, inside a step,
 * with the interpreter's lock; where another thread may have that lock, the instruction is the position, as in other programs. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "self.h"

static struct {
    void *(*thread)(void), *(*interpreter)(void *), *(*first)(void *), *(*next)(void *);
    int (*locked)(void), (*line)(void *);
    void (*lock)(void *), *(*unlock)(void), (*release)(void *);
    void *(*frame)(void *), *(*back)(void *), *(*code)(void *), *(*attribute)(void *, const char *);
    const char *(*text)(void *);
} python;

bool script_runs;

void script_begin(void) {
    const struct {
        const char *name;
        void *to;
    } names[] = {
        {"PyGILState_GetThisThreadState", &python.thread},
        {"PyThreadState_GetInterpreter", &python.interpreter},
        {"PyInterpreterState_ThreadHead", &python.first},
        {"PyThreadState_Next", &python.next},
        {"PyGILState_Check", &python.locked},
        {"PyFrame_GetLineNumber", &python.line},
        {"PyEval_RestoreThread", &python.lock},
        {"PyEval_SaveThread", &python.unlock},
        {"Py_DecRef", &python.release},
        {"PyThreadState_GetFrame", &python.frame},
        {"PyFrame_GetBack", &python.back},
        {"PyFrame_GetCode", &python.code},
        {"PyObject_GetAttrString", &python.attribute},
        {"PyUnicode_AsUTF8", &python.text},
    };
    for (size_t k = 0; k < sizeof names / sizeof *names; k++) {
        void *found = dlsym(RTLD_DEFAULT, names[k].name);
        if (!found) return;
        memcpy(names[k].to, &found, sizeof found);
    }
    script_runs = true;
}

static bool is_library(const char *file) {
    static const char *const parts[] = {"/site-packages/", "/dist-packages/", "/lib/python3", "/cxlemu/program/",
                                        "<frozen "};
    for (size_t k = 0; k < sizeof parts / sizeof *parts; k++)
        if (strstr(file, parts[k])) return true;
    return false;
}

/* Write the name of a code object to `into`, and return it; NULL where there is none. */
static const char *name_of(void *code, const char *attribute, char *into, size_t room) {
    void *object = python.attribute(code, attribute);
    const char *text = object ? python.text(object) : NULL;
    if (text) snprintf(into, room, "%s", text);
    if (object) python.release(object);
    return text ? into : NULL;
}

static program_site site_of(void *frame) {
    char file[PROGRAM_PATH], function[PROGRAM_PATH], both[2 * PROGRAM_PATH];
    void *code = python.code(frame);
    const bool own = name_of(code, "co_filename", file, sizeof file) && !is_library(file) &&
                     name_of(code, "co_name", function, sizeof function);
    python.release(code);
    if (!own || strlen(file) + strlen(function) + 2 > PROGRAM_PATH) return 0;
    snprintf(both, sizeof both, "%s\n%s", file, function);
    return program_site_in(both, (uint32_t)python.line(frame));
}

program_site script_site(void) {
    void *thread = python.thread(), *frame;
    program_site found = 0;
    if (!thread) return 0;
    const bool locked = python.locked();
    if (!locked && python.next(python.first(python.interpreter(thread)))) return 0;
    if (!locked) python.lock(thread);
    for (frame = python.frame(thread); frame && !(found = site_of(frame));) {
        void *caller = python.back(frame);
        python.release(frame);
        frame = caller;
    }
    if (frame) python.release(frame);
    if (!locked) python.unlock();
    return found;
}
