/* What a processor is told that looks again and again. */
#ifndef CXLEMU_PAUSE_H
#define CXLEMU_PAUSE_H

#if defined(__x86_64__)
#define PAUSE() __builtin_ia32_pause()
#elif defined(__aarch64__)
#define PAUSE() __asm__ volatile("yield")
#else
#define PAUSE() ((void)0)
#endif

#endif
