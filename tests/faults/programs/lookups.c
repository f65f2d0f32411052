/* Looks up functions while libraries come and go. `held`: in a callback of the linker's, while another thread does so too, with
 * a new library. `again`: of a library that was unloaded in between. `published`: what the library has left in the pool. */
#define _GNU_SOURCE
#include <cxl.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { BYTES = 1 << 16, LINE = 64, HOLD_US = 200000 };

static const char *library;
static sem_t loaded, begun;

static void *look_up(void *unused) {
    void *its = dlopen(library, RTLD_NOW);
    (void)unused;
    sem_post(&loaded);
    sem_wait(&begun);
    return its ? dlsym(its, "publish") : NULL;
}

static int in_callback(struct dl_phdr_info *info, size_t size, void *found) {
    (void)info, (void)size;
    sem_post(&begun);
    usleep(HOLD_US); /* the other thread comes as far as it can */
    *(void **)found = dlsym(RTLD_DEFAULT, "getpid");
    return 1;
}

static int held(void) {
    pthread_t thread;
    void *found = NULL, *theirs = NULL;
    sem_init(&loaded, 0, 0), sem_init(&begun, 0, 0);
    if (pthread_create(&thread, NULL, look_up, NULL)) return 2;
    sem_wait(&loaded);
    dl_iterate_phdr(in_callback, &found);
    pthread_join(thread, &theirs);
    return found && theirs ? 0 : 3;
}

static int again(char *pool) {
    for (uint8_t k = 0; k < 3; k++) {
        void *its = dlopen(library, RTLD_NOW);
        if (!its) return 2;
        void (*publish)(uint8_t *, uint8_t) = (void (*)(uint8_t *, uint8_t))(uintptr_t)dlsym(its, "publish");
        publish((uint8_t *)pool + k * LINE, k + 1);
        dlclose(its);
    }
    return 0;
}

static int published(char *pool) {
    for (uint8_t k = 0; k < 3; k++) {
        const int got = *(volatile uint8_t *)(pool + k * LINE);
        if (got != k + 1) printf("round %d: %d\n", k, got);
    }
    return 0;
}

int main(int count, char **words) {
    if (count != 4) return 2;
    const int file = open(words[1], O_RDWR | O_CREAT, 0600);
    if (file < 0 || ftruncate(file, BYTES)) return 2;
    char *pool = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (pool == MAP_FAILED) return 2;
    library = words[2];
    if (strcmp(words[3], "held") == 0) return held();
    if (strcmp(words[3], "again") == 0) return again(pool);
    return published(pool);
}
