/* Asks a mount for something, again and again: one thread, one request after the other, each of which has to reach the
 * process that serves the mount.
 *
 *   ask stat|read FILE COUNT     prints the seconds of one request
 *
 * stat: attributes, which the kernel may not take from its cache. read: 4 KiB of FILE from its first MiB, past the
 * kernel's pages. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { PIECE = 4096, PIECES = 256 };

static void must(long outcome, const char *what) {
    if (outcome < 0) {
        fprintf(stderr, "ask: %s: %s\n", what, strerror(errno));
        exit(1);
    }
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

int main(int argc, char **argv) {
    if (argc != 4 || (strcmp(argv[1], "stat") && strcmp(argv[1], "read"))) {
        fprintf(stderr, "usage: ask stat|read FILE COUNT\n");
        return 3;
    }
    int count = atoi(argv[3]), reads = argv[1][0] == 'r';
    int fd = open(argv[2], O_RDONLY | O_CLOEXEC | (reads ? O_DIRECT : 0));
    must(fd, argv[2]);
    void *bytes;
    must(-posix_memalign(&bytes, PIECE, PIECE), "memory");
    double start = now();
    for (int i = 0; i < count; i++) {
        if (reads) {
            long got = pread(fd, bytes, PIECE, (off_t)(i * 7 % PIECES) * PIECE);
            must(got == PIECE ? 0 : -1, "read");
        } else {
            struct statx st;
            must(statx(fd, "", AT_EMPTY_PATH | AT_STATX_FORCE_SYNC, STATX_BASIC_STATS, &st), "stat");
        }
    }
    printf("%.9f\n", (now() - start) / count);
    return 0;
}
