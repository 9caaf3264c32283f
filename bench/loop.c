/* What `vellum bench` does with names, in a plain loop: the least that it can cost. One thread.
 *
 *   loop DIR COUNT     prints a JSON object: operations a second, by the names of the rows of `vellum bench`
 *
 * Works in an empty directory that its caller makes and removes. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

static void must(long outcome, const char *what) {
    if (outcome < 0) {
        fprintf(stderr, "loop: %s: %s\n", what, strerror(errno));
        exit(1);
    }
}

static void tell(const char *name, double amount, double start, const char *end) {
    printf("\"%s\": %.1f%s", name, amount / (now() - start), end);
}

int main(int argc, char **argv) {
    if (argc != 3) {
        fprintf(stderr, "usage: loop DIR COUNT\n");
        return 3;
    }
    int dir = open(argv[1], O_RDONLY | O_DIRECTORY), count = atoi(argv[2]);
    must(dir, argv[1]);
    char name[64], other[64];
    double start;

    printf("{");
    start = now();
    for (int i = 0; i < count; i++) {
        snprintf(name, sizeof name, "bench-%d", i);
        int fd = openat(dir, name, O_CREAT | O_EXCL | O_RDWR | O_NOFOLLOW | O_CLOEXEC, 0644);
        must(fd, "create");
        close(fd);
    }
    tell("create", count, start, ", ");

    start = now();
    for (int i = 0; i < count; i++) {
        snprintf(name, sizeof name, "bench-%d-d", i);
        must(mkdirat(dir, name, 0755), "mkdir");
    }
    tell("mkdir", count, start, ", ");

    start = now();
    for (int i = 0; i < count; i++) {
        snprintf(name, sizeof name, "bench-%d", i);
        snprintf(other, sizeof other, "bench-%d-r", i);
        must(renameat(dir, name, dir, other), "rename");
    }
    tell("rename", count, start, ", ");

    start = now();
    int listed = 0, again = openat(dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    must(again, "open");
    DIR *stream = fdopendir(again);
    while (stream && readdir(stream)) listed++;
    tell("readdir", listed, start, ", ");
    closedir(stream);

    start = now();
    for (int i = 0; i < count; i++) {
        struct statx st;
        snprintf(name, sizeof name, "bench-%d-r", i);
        must(statx(dir, name, AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT, STATX_BASIC_STATS | STATX_BTIME, &st), "stat");
    }
    tell("stat", count, start, ", ");

    start = now();
    for (int i = 0; i < count; i++) {
        snprintf(name, sizeof name, "bench-%d-r", i);
        must(unlinkat(dir, name, 0), "unlink");
    }
    tell("unlink", count, start, ", ");

    start = now();
    for (int i = 0; i < count; i++) {
        snprintf(name, sizeof name, "bench-%d-d", i);
        must(unlinkat(dir, name, AT_REMOVEDIR), "rmdir");
    }
    tell("rmdir", count, start, "}\n");
    return 0;
}
