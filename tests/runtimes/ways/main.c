/* An echo server and its client, by one way of reaching sockets.
 *
 *   ways server WAY PORT     serves one connection after the other
 *   ways client WAY PORT     talks to it, prints what its calls gave
 *
 * With a way that begins with "uring-all", connections are made and taken through the ring too.
 */
#define _GNU_SOURCE
#include "ways.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define SMALL_ROUNDS 200
#define BULK (4 << 20)
#define CHUNK 65536
#define LIMIT_S 80

static struct way way;
static int is_all;

static void must(int ok, const char *what)
{
    if (!ok) {
        give_up(what);
    }
}

static void say(const char *what, long result)
{
    printf("%s: %ld%s%s\n", what, result, result < 0 ? " " : "", result < 0 ? strerror(errno) : "");
}

/* Ways that wait where nobody sees it have sockets that do not block. */
static int made(int fd)
{
    if (strcmp(way.name, "inline-poll") == 0) {
        must(fcntl(fd, F_SETFL, O_NONBLOCK) == 0, "O_NONBLOCK");
    }
    return fd;
}

/* The byte at a position of the stream. */
static unsigned char byte_at(size_t position)
{
    return (position * 2654435761u) >> 13;
}

static void send_all(int fd, const char *from, size_t n)
{
    while (n) {
        ssize_t sent = way.send(fd, from, n, 0);

        must(sent > 0, "send");
        from += sent, n -= sent;
    }
}

static void echo(int fd)
{
    static char room[CHUNK];
    ssize_t n;

    while ((n = way.recv(fd, room, sizeof room, 0)) > 0) {
        send_all(fd, room, n);
    }
    must(n == 0, "recv");
    must(way.close(fd) == 0, "close");
}

static void server(int port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
    int listener = socket(AF_INET, SOCK_STREAM, 0), one = 1;

    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    must(bind(listener, (struct sockaddr *)&address, sizeof address) == 0, "bind");
    must(listen(listener, 8) == 0, "listen");
    for (;;) {
        int fd = is_all ? uring_accept(listener) : accept(listener, NULL, NULL);

        must(fd >= 0, "accept");
        echo(made(fd));
    }
}

/* Both directions at once: whatever can be moved is moved. */
static void bulk(int fd)
{
    static char out[CHUNK], back[CHUNK];
    size_t sent = 0, got = 0;

    while (got < BULK) {
        struct pollfd entry = {.fd = fd, .events = POLLIN | (sent < BULK ? POLLOUT : 0)};

        must(way.poll(&entry, 1, -1) == 1, "poll");
        if (entry.revents & POLLOUT && sent < BULK) {
            size_t n = BULK - sent < CHUNK ? BULK - sent : CHUNK;

            for (size_t i = 0; i < n; i++) {
                out[i] = byte_at(sent + i);
            }
            ssize_t did = way.send(fd, out, n, MSG_DONTWAIT);

            must(did > 0 || errno == EAGAIN, "bulk send");
            sent += did > 0 ? did : 0;
        }
        if (entry.revents & POLLIN) {
            ssize_t did = way.recv(fd, back, sizeof back, MSG_DONTWAIT);

            must(did > 0 || (did < 0 && errno == EAGAIN), "bulk recv");
            for (ssize_t i = 0; i < did; i++) {
                must((unsigned char)back[i] == byte_at(got + i), "a byte");
            }
            got += did > 0 ? did : 0;
        }
        must(!(entry.revents & (POLLERR | POLLNVAL)), "no error");
    }
}

static void client(int port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
    int fd = socket(AF_INET, SOCK_STREAM, 0), one = 1;
    char out[2000], back[2000];

    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    int failed = is_all ? uring_connect(fd, &address, sizeof address)
                        : connect(fd, (struct sockaddr *)&address, sizeof address);

    must(!failed, "connect");
    made(fd);
    for (int round = 0; round < SMALL_ROUNDS; round++) {
        size_t n = 1 + round * 37 % sizeof out, got = 0;

        memset(out, round, n);
        send_all(fd, out, n);
        while (got < n) {
            ssize_t more = way.recv(fd, back + got, n - got, 0);

            must(more > 0, "recv");
            got += more;
        }
        must(memcmp(out, back, n) == 0, "the same bytes");
    }
    say("small", SMALL_ROUNDS);
    say("nothing there", way.recv(fd, back, sizeof back, MSG_DONTWAIT));
    bulk(fd);
    say("bulk", BULK);
    /* The connection under another number, the first one closed. */
    int other = way.dup(fd);

    must(other >= 0, "dup");
    say("close", way.close(fd));
    send_all(other, "end", 3);
    say("shutdown", way.shutdown(other, SHUT_WR));
    say("send after it", way.send(other, "x", 1, MSG_NOSIGNAL));
    size_t got = 0;

    while (got < 3) {
        ssize_t more = way.recv(other, back + got, sizeof back - got, 0);

        must(more > 0, "recv");
        got += more;
    }
    say("end of stream", way.recv(other, back, sizeof back, 0));
    say("once more", way.recv(other, back, sizeof back, 0));
    say("close", way.close(other));
    say("close twice", way.close(other));
}

int main(int argc, char **argv)
{
    must(argc == 4, "ways server|client WAY PORT");
    int is_server = strcmp(argv[1], "server") == 0;

    if (!is_server) {
        alarm(LIMIT_S);
    }
    is_all = strncmp(argv[2], "uring-all", 9) == 0;
    way = way_of(argv[2]);
    is_all = is_all && way.recv == uring_way.recv;
    (is_server ? server : client)(atoi(argv[3]));
    return 0;
}
