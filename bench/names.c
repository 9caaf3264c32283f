/* Does one thing to many names, one after the other, in one thread.
 *
 *   names STEP DIR COUNT     prints the seconds of one
 *
 * STEP is create, create4k (with 4 KiB of content), mkdir, stat, chmod, rename, unlink (of what was renamed), unlink4k or
 * rmdir; later steps use what earlier ones have left in DIR. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { SIZE = 4096, LONGEST = 64 };

static char content[SIZE];

static void must(long outcome, const char *name) {
    if (outcome < 0) {
        fprintf(stderr, "names: %s: %s\n", name, strerror(errno));
        exit(1);
    }
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

static void make(const char *name, int number, int size) {
    int fd = open(name, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0644);
    must(fd, name);
    if (size) {
        memcpy(content, &number, sizeof number);
        must(write(fd, content, SIZE), name);
    }
    must(close(fd), name);
}

static void step(const char *what, int number) {
    char empty[LONGEST], full[LONGEST], renamed[LONGEST], directory[LONGEST];
    struct stat st;
    snprintf(empty, LONGEST, "empty-%06d", number);
    snprintf(full, LONGEST, "full-%06d", number);
    snprintf(renamed, LONGEST, "renamed-%06d", number);
    snprintf(directory, LONGEST, "directory-%06d", number);
    if (!strcmp(what, "create")) make(empty, number, 0);
    else if (!strcmp(what, "create4k")) make(full, number, SIZE);
    else if (!strcmp(what, "mkdir")) must(mkdir(directory, 0755), directory);
    else if (!strcmp(what, "stat")) must(stat(empty, &st), empty);
    else if (!strcmp(what, "chmod")) must(chmod(empty, 0600), empty);
    else if (!strcmp(what, "rename")) must(rename(empty, renamed), empty);
    else if (!strcmp(what, "unlink")) must(unlink(renamed), renamed);
    else if (!strcmp(what, "unlink4k")) must(unlink(full), full);
    else if (!strcmp(what, "rmdir")) must(rmdir(directory), directory);
    else {
        fprintf(stderr, "names: no step %s\n", what);
        exit(3);
    }
}

int main(int argc, char **argv) {
    if (argc != 4) {
        fprintf(stderr, "usage: names STEP DIR COUNT\n");
        return 3;
    }
    must(chdir(argv[2]), argv[2]);
    memset(content, 'x', SIZE);
    int count = atoi(argv[3]);
    double start = now();
    for (int number = 0; number < count; number++) step(argv[1], number);
    printf("%.9f\n", (now() - start) / count);
    return 0;
}
