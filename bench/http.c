/* Sends one request of HTTP again and again over many connections, as fast as answers come.
 *
 *   http PORT CLIENTS SECONDS HEAD     HEAD: a file with the head of a request that has no body, and keeps its connection
 *
 * Prints a JSON object: answers by status, connections that broke off, bytes of content, seconds, and the time within which
 * half and 99 in 100 of all answers came. One thread, which waits for all connections at once. A connection that ends is
 * opened again. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { HEAD_MAX = 64 << 10, PIECE = 256 << 10, TIMES_MAX = 4 << 20 };

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

static void fail(const char *what) {
    fprintf(stderr, "http: %s: %s\n", what, strerror(errno));
    exit(1);
}

struct client {
    int socket;
    size_t head;      /* bytes of the answer's head that are in `text` */
    long long left;   /* bytes of content that are to come; -1: the head is not whole yet */
    double sent;
    int closes;       /* whether the answer says that the connection ends with it */
    char text[8192];
};

static struct sockaddr_in server = {.sin_family = AF_INET};
static char request[HEAD_MAX];
static size_t request_len;
static long long by_status[600], content, broken;
static double *times;
static long time_count;

/* On the loopback and with one request at once, its head fits into the buffer of the socket. */
static void ask(struct client *client) {
    client->head = 0;
    client->left = -1;
    client->sent = now();
    if (send(client->socket, request, request_len, MSG_NOSIGNAL) != (ssize_t)request_len) client->left = -2;
}

static void open_client(int poll, struct client *client) {
    client->socket = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (client->socket < 0) fail("socket");
    int on = 1;
    setsockopt(client->socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (connect(client->socket, (struct sockaddr *)&server, sizeof server) < 0) fail("connect");
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = client};
    if (epoll_ctl(poll, EPOLL_CTL_ADD, client->socket, &event) < 0) fail("epoll_ctl");
    ask(client);
}

static void finish(struct client *client) {
    if (time_count < TIMES_MAX) times[time_count++] = now() - client->sent;
}

/* Reads what is there. Returns 0 if the connection has ended. */
static int take(struct client *client) {
    static char piece[PIECE];
    if (client->left == -2) return 0;
    if (client->left == -1) {
        ssize_t got = recv(client->socket, client->text + client->head, sizeof client->text - 1 - client->head, 0);
        if (got <= 0) return 0;
        client->head += got;
        client->text[client->head] = 0;
        char *end = strstr(client->text, "\r\n\r\n");
        if (!end) return client->head < sizeof client->text - 1;
        int status = atoi(client->text + 9);
        if (status < 0 || status >= 600) return 0;
        by_status[status]++;
        char *length = strcasestr(client->text, "\r\ncontent-length:");
        /* Answers without a length would be in chunks, which nothing that is measured here has. */
        if (!length || length > end) return 0;
        long long total = atoll(length + 17), here = client->head - (end + 4 - client->text);
        char *closing = strcasestr(client->text, "\r\nconnection: close");
        client->closes = closing && closing < end;
        content += here;
        client->left = total - here;
    } else {
        ssize_t got = recv(client->socket, piece, sizeof piece, 0);
        if (got <= 0) return 0;
        content += got;
        client->left -= got;
    }
    if (client->left == 0) {
        finish(client);
        if (client->closes) return 0;
        ask(client);
    }
    return 1;
}

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv) {
    if (argc != 5) {
        fprintf(stderr, "usage: http PORT CLIENTS SECONDS HEAD\n");
        return 3;
    }
    server.sin_port = htons(atoi(argv[1]));
    server.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int count = atoi(argv[2]);
    double seconds = atof(argv[3]);
    FILE *head = fopen(argv[4], "r");
    if (!head) fail(argv[4]);
    request_len = fread(request, 1, sizeof request, head);
    fclose(head);
    struct rlimit files;
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    times = malloc(TIMES_MAX * sizeof *times);
    struct client *clients = calloc(count, sizeof *clients);
    int poll = epoll_create1(EPOLL_CLOEXEC);
    if (!clients || !times || poll < 0) fail("memory");
    /* The clock runs when all have connected: the kernel makes those wait who come while its queue is full. */
    for (int i = 0; i < count; i++) open_client(poll, &clients[i]);
    double start = now(), end = start + seconds;
    while (now() < end) {
        struct epoll_event events[256];
        int ready = epoll_wait(poll, events, 256, 100);
        for (int i = 0; i < ready; i++) {
            struct client *client = events[i].data.ptr;
            if (take(client)) continue;
            if (client->left != 0) broken++;
            close(client->socket);
            open_client(poll, client);
        }
    }
    double taken = now() - start;
    qsort(times, time_count, sizeof *times, compare);
    printf("{\"seconds\": %.3f, \"content\": %lld, \"broken\": %lld, \"median\": %.6f, \"p99\": %.6f", taken, content, broken,
           time_count ? times[time_count / 2] : 0, time_count ? times[time_count * 99 / 100] : 0);
    printf(", \"statuses\": {");
    const char *comma = "";
    for (int status = 0; status < 600; status++) {
        if (!by_status[status]) continue;
        printf("%s\"%d\": %lld", comma, status, by_status[status]);
        comma = ", ";
    }
    printf("}}\n");
    return 0;
}
