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
    double start;

    /* Made before the clock runs: printf would be a good part of a stat. */
    struct names { char file[32], moved[32], dir[32]; } *names = calloc(count, sizeof *names);
    must(names ? 0 : -1, "memory");
    for (int i = 0; i < count; i++) {
        snprintf(names[i].file, sizeof names[i].file, "bench-%d", i);
        snprintf(names[i].moved, sizeof names[i].moved, "bench-%d-r", i);
        snprintf(names[i].dir, sizeof names[i].dir, "bench-%d-d", i);
    }

    /* `vellum bench` has just removed its small files when it begins with names. */
    for (int i = 0; i < count; i++) {
        int fd = openat(dir, names[i].file, O_CREAT | O_EXCL | O_RDWR | O_NOFOLLOW | O_CLOEXEC, 0644);
        must(fd, "create");
        close(fd);
    }
    for (int i = 0; i < count; i++) must(unlinkat(dir, names[i].file, 0), "unlink");

    printf("{");
    start = now();
    for (int i = 0; i < count; i++) {
        int fd = openat(dir, names[i].file, O_CREAT | O_EXCL | O_RDWR | O_NOFOLLOW | O_CLOEXEC, 0644);
        must(fd, "create");
        close(fd);
    }
    tell("create", count, start, ", ");

    start = now();
    for (int i = 0; i < count; i++) {
        struct statx st;
        must(statx(dir, names[i].file, AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT, STATX_BASIC_STATS | STATX_BTIME, &st), "stat");
    }
    tell("stat", count, start, ", ");

    start = now();
    for (int i = 0; i < count; i++) must(mkdirat(dir, names[i].dir, 0755), "mkdir");
    tell("mkdir", count, start, ", ");

    start = now();
    for (int i = 0; i < count; i++) must(renameat(dir, names[i].file, dir, names[i].moved), "rename");
    tell("rename", count, start, ", ");

    start = now();
    int listed = 0, again = openat(dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    must(again, "open");
    DIR *stream = fdopendir(again);
    while (stream && readdir(stream)) listed++;
    tell("readdir", listed, start, ", ");
    closedir(stream);

    start = now();
    for (int i = 0; i < count; i++) must(unlinkat(dir, names[i].moved, 0), "unlink");
    tell("unlink", count, start, ", ");

    start = now();
    for (int i = 0; i < count; i++) must(unlinkat(dir, names[i].dir, AT_REMOVEDIR), "rmdir");
    tell("rmdir", count, start, "}\n");
    return 0;
}
