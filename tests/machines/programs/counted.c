/* Messages to be counted: so many before, which let the ends meet, then a pause in which somebody looks at counters, then
 * those that count.
 *
 *   counted serve ADDRESS PORT
 *   counted ask ADDRESS PORT requests WARM COUNT BYTES     a request and an answer of so many bytes each time
 *   counted ask ADDRESS PORT bulk WARM COUNT BYTES         so many writes, then an answer of one byte
 *
 * Both print nothing but the client's `ready` and `done`; behind each it waits for a line of standard input.
 * With COUNTED_NAP_US set, both ends rest for so long before each receive call that counts: what it asks for is there then.
 */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

struct job {
    unsigned bulk, warm, count, bytes;
};

static unsigned nap_us, is_warm;

static void fail(const char *what)
{
    perror(what);
    exit(1);
}

/* By themselves, so that a profiler can tell what they cost. */
__attribute__((noinline)) ssize_t counted_send(int fd, const void *from, size_t len)
{
    return send(fd, from, len, 0);
}

__attribute__((noinline)) ssize_t counted_recv(int fd, void *to, size_t len)
{
    return recv(fd, to, len, 0);
}

static void put(int fd, const char *from, size_t len)
{
    while (len) {
        ssize_t n = counted_send(fd, from, len);
        if (n <= 0)
            fail("send");
        from += n;
        len -= n;
    }
}

static void take(int fd, char *to, size_t len)
{
    while (len) {
        if (nap_us && is_warm)
            usleep(nap_us);
        ssize_t n = counted_recv(fd, to, len);
        if (n <= 0)
            fail("recv");
        to += n;
        len -= n;
    }
}

static void fill(char *at, unsigned len, unsigned seed)
{
    for (unsigned i = 0; i < len; i++)
        at[i] = (char)(i * 7 + seed);
}

static void compare(const char *at, unsigned len, unsigned seed)
{
    for (unsigned i = 0; i < len; i++)
        if (at[i] != (char)(i * 7 + seed)) {
            fprintf(stderr, "byte %u of message %u\n", i, seed);
            exit(1);
        }
}

static char buffer[1 << 20];

/* The first bytes of each message are new each time, and compared. */
static void rounds(int fd, const struct job *job, unsigned count, unsigned first, int asks)
{
    for (unsigned i = first; i < first + count; i++) {
        if (asks) {
            fill(buffer, job->bytes < 64 ? job->bytes : 64, i);
            put(fd, buffer, job->bytes);
        } else {
            take(fd, buffer, job->bytes);
            compare(buffer, job->bytes < 64 ? job->bytes : 64, i);
        }
        if (job->bulk && i + 1 != first + count)
            continue;
        unsigned answer = job->bulk ? 1 : job->bytes;
        if (asks) {
            take(fd, buffer, answer);
        } else {
            put(fd, buffer, answer);
        }
    }
}

static void await_line(const char *word)
{
    char line[16];
    puts(word);
    fflush(stdout);
    if (!fgets(line, sizeof line, stdin))
        exit(1);
}

int main(int argc, char **argv)
{
    struct sockaddr_in at = { .sin_family = AF_INET };
    struct job job;
    struct job small = { 0 };
    int one = 1;

    if (argc < 4 || !inet_pton(AF_INET, argv[2], &at.sin_addr))
        return 2;
    at.sin_port = htons(atoi(argv[3]));
    nap_us = getenv("COUNTED_NAP_US") ? atoi(getenv("COUNTED_NAP_US")) : 0;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (!strcmp(argv[1], "serve")) {
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
        if (bind(fd, (struct sockaddr *)&at, sizeof at) || listen(fd, 1))
            fail("listen");
        int taken = accept(fd, 0, 0);
        if (taken < 0)
            fail("accept");
        setsockopt(taken, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        take(taken, (char *)&job, sizeof job);
        small.bytes = 64;
        rounds(taken, &small, job.warm, 0, 0);
        is_warm = 1;
        rounds(taken, &job, job.count, job.warm, 0);
        while (recv(taken, buffer, 1, 0) > 0)
            ;
        return 0;
    }
    if (argc != 8)
        return 2;
    job = (struct job){ !strcmp(argv[4], "bulk"), atoi(argv[5]), atoi(argv[6]), atoi(argv[7]) };
    if (connect(fd, (struct sockaddr *)&at, sizeof at))
        fail("connect");
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    put(fd, (char *)&job, sizeof job);
    small.bytes = 64;
    rounds(fd, &small, job.warm, 0, 1);
    is_warm = 1;
    await_line("ready");
    rounds(fd, &job, job.count, job.warm, 1);
    await_line("done");
    close(fd);
    return 0;
}
