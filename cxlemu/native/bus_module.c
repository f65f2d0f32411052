/* SIGBUS on shared memory: the process prints what that means before it ends, for runs without a launcher that
 * would. */
#define _GNU_SOURCE
#include "modules.h"

#include <signal.h>
#include <string.h>
#include <unistd.h>

static char sentence[1024];
static size_t sentence_bytes;

/* Print the sentence. The instruction then runs again, and the default action ends the process. */
static void say(int number, siginfo_t *info, void *context) {
    (void)number, (void)context;
    if (info->si_code != BUS_ADRERR) return;
    const ssize_t written = write(STDERR_FILENO, sentence, sentence_bytes);
    (void)written; /* nothing can be done about a failure here */
}

static PyObject *say_on_bus_error(PyObject *module, PyObject *text) {
    (void)module;
    Py_ssize_t nbytes;
    const char *utf8 = PyUnicode_AsUTF8AndSize(text, &nbytes);
    if (!utf8) return NULL;
    if ((size_t)nbytes > sizeof sentence)
        return PyErr_Format(PyExc_ValueError, "the sentence has more than %zu bytes", sizeof sentence);
    struct sigaction found, ours = {.sa_sigaction = say, .sa_flags = (int)(SA_SIGINFO | SA_RESETHAND | SA_ONSTACK)};
    if (sigaction(SIGBUS, NULL, &found) < 0) return PyErr_SetFromErrno(PyExc_OSError);
    if (!(found.sa_flags & SA_SIGINFO) && found.sa_handler == SIG_DFL) { /* leave a handler of the user's in place */
        memcpy(sentence, utf8, (size_t)nbytes), sentence_bytes = (size_t)nbytes;
        sigemptyset(&ours.sa_mask);
        if (sigaction(SIGBUS, &ours, NULL) < 0) return PyErr_SetFromErrno(PyExc_OSError);
    }
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"say_on_bus_error", say_on_bus_error, METH_O,
     "say_on_bus_error(text): written to stderr when a page of memory cannot be had, before SIGBUS ends the process."},
    {NULL, NULL, 0, NULL},
};

int bus_add_to(PyObject *module) { return PyModule_AddFunctions(module, methods); }
