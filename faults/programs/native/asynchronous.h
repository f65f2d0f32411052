/* System calls that let the kernel read and write the program's memory while it goes on: io_submit, io_uring. */
#ifndef CXLEMU_ASYNCHRONOUS_H
#define CXLEMU_ASYNCHRONOUS_H

/* Make a system call with its six arguments, from a place in the program; returns what the kernel does. */
long system_call(long number, const long *words, const void *pc);

/* threads.c: a system call as it stands, and the end of one that failed, as syscall() has them. */
long cxlemu_system_call(long number, ...);
long cxlemu_system_call_failed(long error);

#endif
