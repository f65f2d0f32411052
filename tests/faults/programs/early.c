/* A library that has done something before the main of a program that is linked with it. */
#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

void *sleeps(void *unused) {
    for (;;) pause();
    return unused;
}

__attribute__((constructor)) static void early(void) {
#if defined(THREADS)
    pthread_t thread;
    pthread_create(&thread, NULL, sleeps, NULL);
#elif defined(FILES)
    open("/dev/null", O_RDONLY);
#elif defined(POOL)
    open("/dev/shm/servers", O_RDWR | O_CREAT, 0600);
#endif
}
