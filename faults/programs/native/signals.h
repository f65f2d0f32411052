/* The signals that stay ours whatever the program does with its own: SIGTRAP and SIGSEGV. */
#ifndef CXLEMU_SIGNALS_H
#define CXLEMU_SIGNALS_H

#include <signal.h>

void signals_take(int number, const struct sigaction *action);

/* What the program itself would have had: its handler is called, or the signal ends it. In the handler that was taken. */
void signals_pass_on(int number, siginfo_t *info, void *context);

#endif
