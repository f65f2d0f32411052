/* What functions of the C library return for strings in a pool, and store there. */
#define _GNU_SOURCE
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

int main(int argc, char **argv) {
    if (argc != 2) return 2;
    char *pool = mmap(NULL, 1 << 21, PROT_READ | PROT_WRITE, MAP_SHARED, open(argv[1], O_RDWR), 0);
    char **rest = (char **)(pool + 512), *text = strcpy(pool + 60, ";;one;two;;three"), *end;
    assert(strtok_r(text, ";", rest) == text + 2 && strcmp(text + 2, "one") == 0);
    assert(strtok_r(NULL, ";", rest) == text + 6 && strtok_r(NULL, ";", rest) == text + 11 && *rest == text + 16);
    assert(!strtok_r(NULL, ";", rest) && !strtok(strcpy(text, ";;"), ";"));
    assert(strtok(strcpy(text, "a b"), " ") == text && strtok(NULL, " ") == text + 2 && !strtok(NULL, " "));

    *rest = strcpy(text, ",x");
    assert(strsep(rest, ",") == text && !*text && strsep(rest, ",") == text + 1 && !*rest && !strsep(rest, ","));

    strcpy(text, "cabbage");
    assert(strspn(text, "abc") == 5 && strcspn(text, "g") == 5 && strpbrk(text, "gb") == text + 2 &&
           !strpbrk(text, "z"));
    assert(strchrnul(text, 'z') == text + 7 && strrchr(text, 'a') == text + 4 && strcasestr(text, "AGE") == text + 4);
    assert(memrchr(text, 'b', 7) == text + 3 && memmem(text, 7, text + 3, 2) == text + 3 && strcoll(text, "cab") > 0);

    errno = 0;
    assert(strtol(strcpy(text, " -0x1Fz"), rest, 0) == -31 && *rest == text + 6 && !errno);
    assert(strtoul(text, &end, 10) == 0 && end == text + 3 && strtoll(text + 3, NULL, 36) == 1541519);
    assert(strtod(strcpy(text, "2.5e1 1"), &end) == 25 && end == text + 5 && atof(text) == 25 && atoi(text) == 2);
    assert(strtol(strcpy(text, "9999999999999999999"), NULL, 10) == LONG_MAX && errno == ERANGE);
    return 0;
}
