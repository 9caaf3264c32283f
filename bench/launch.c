/* Starts a program and says what it cost. Small itself: a process begins as large as the one that made it, and the
 * kernel's figure of its peak memory would be the interpreter's that measures.
 *
 *   launch RESULT PROGRAM ARGUMENT...
 *
 * Writes "WALL USER SYSTEM PEAK DIRTIED STATUS" to the file RESULT: seconds, seconds, seconds, KiB, blocks of 512 bytes, as
 * the kernel accounts them, and the status that wait(2) gave. What the program reads and writes is what was handed on.
 * Ends with 127 and without a result if the program cannot be started. */
#define _GNU_SOURCE
#include <errno.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>

extern char **environ;

static double seconds(struct timeval t) {
    return t.tv_sec + t.tv_usec / 1e6;
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

int main(int argc, char **argv) {
    if (argc < 3) {
        fprintf(stderr, "usage: launch RESULT PROGRAM ARGUMENT...\n");
        return 3;
    }
    pid_t child;
    double start = now();
    int failed = posix_spawnp(&child, argv[2], NULL, NULL, argv + 2, environ);
    if (failed) {
        fprintf(stderr, "launch: %s: %s\n", argv[2], strerror(failed));
        return 127;
    }
    int status;
    struct rusage used;
    while (wait4(child, &status, 0, &used) < 0)
        if (errno != EINTR) return 126;
    double wall = now() - start;
    FILE *result = fopen(argv[1], "w");
    if (!result) {
        fprintf(stderr, "launch: %s: %s\n", argv[1], strerror(errno));
        return 126;
    }
    fprintf(result, "%.9f %.6f %.6f %ld %ld %d\n", wall, seconds(used.ru_utime), seconds(used.ru_stime), used.ru_maxrss,
            used.ru_oublock, status);
    return fclose(result) ? 126 : 0;
}
