/* What functions of the C library return for strings in a pool, and store there. */
#define _GNU_SOURCE
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <wchar.h>

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

    FILE *file = fmemopen((char[]){"one\ntwo"}, 7, "r");
    assert(fgets(memset(text, 'x', 40), 30, file) == text && strcmp(text, "one\n") == 0 && text[5] == 'x');
    assert(fgets(text, 3, file) == text && strcmp(text, "tw") == 0 && text[3] == '\n' && text[5] == 'x');
    assert(fgets(text, 30, file) && strcmp(text, "o") == 0 && text[2] == 0 && text[5] == 'x' && !fgets(text, 30, file));

    char mine[40];
    assert(snprintf(mine, 40, "%s%-4.*s|%*d%%%c", strcpy(text, "ab"), 1, text, 3, 7, 'z') == 12);
    assert(strcmp(mine, "aba   |  7%z") == 0 && rawmemchr(text, 'b') == text + 1);
    int *number = (int *)(pool + 256);
    assert(sscanf(strcpy(text, "12 cab"), "%d %39s", number, mine) == 2 && *number == 12 && strcmp(mine, "cab") == 0);
    swab("badc", text, 4);
    assert(memcmp(text, "abcd", 4) == 0 && strverscmp(strcpy(text, "a10"), "a9") > 0);
    assert(strxfrm(text, "wide", 40) == 4 && strcmp(text, "wide") == 0);

    wchar_t *wide = wcscpy((wchar_t *)(pool + 1024 + 60), L"wide one");
    assert(wcslen(wide) == 8 && wcsnlen(wide, 3) == 3 && wcscmp(wide, L"wide one") == 0 &&
           wcsncmp(wide, L"wider", 4) == 0);
    assert(wmemcpy(wide + 20, wide, 9) == wide + 20 && wmemcmp(wide, wide + 20, 9) == 0 &&
           wmemset(wide, L'x', 3)[2] == L'x');
    assert(mbstowcs(wide, text, 9) == 4 && wide[3] == L'e');
    return 0;
}
