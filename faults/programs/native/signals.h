/* SIGTRAP and SIGSEGV, which this library keeps whatever handlers the program sets for them. */
#ifndef CXLEMU_SIGNALS_H
#define CXLEMU_SIGNALS_H

#include <signal.h>

void signals_take(int number, const struct sigaction *action);

/* Let the program have its signal: call its own handler, or let the signal end it. Called in our handler. */
void signals_pass_on(int number, siginfo_t *info, void *context);

#endif
