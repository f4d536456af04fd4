/* A statically linked program without the library: what an executed image or a receiver of passed
 * descriptors may be.
 *
 *   unaware cat           copies descriptor 0 to 1 until the end
 *   unaware passed N      takes a descriptor from the socket on descriptor N, copies it to itself
 *   unaware sum           tells on descriptor 2 what it read from descriptor 0 and how that ended, and
 *                         answers "done"
 *   unaware sum N         the same with a descriptor from the socket on descriptor N
 *   unaware take B N      tells on descriptor 2, as JSON, the first B bytes that it read from descriptor N,
 *                         what state its socket is in and where its other end is, and sends the rest back
 *   unaware take B from N the same with a descriptor from the socket on descriptor N
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

/* Bytes of a socket that may be non-blocking. */
static ssize_t some(int fd, void *room, size_t most)
{
    struct pollfd waits = {.fd = fd, .events = POLLIN};
    ssize_t n;

    while ((n = read(fd, room, most)) < 0 && errno == EAGAIN) {
        poll(&waits, 1, -1);
    }
    return n;
}

static int copy(int in, int out)
{
    char room[65536];
    ssize_t n;

    while ((n = some(in, room, sizeof room)) > 0) {
        for (ssize_t at = 0, sent; at < n; at += sent) {
            sent = write(out, room + at, n - at);
            if (sent < 0) {
                return 2;
            }
        }
    }
    return n < 0;
}

struct sum {
    uint64_t total;
    /* Adler-32 */
    uint32_t checksum;
    const char *end;
};

/* Of the next bytes, at most so many; and how they ended. */
static struct sum sum_of(int fd, uint64_t most)
{
    static char room[65536];
    uint32_t low = 1, high = 0;
    uint64_t total = 0;
    ssize_t n = 1;

    while (total < most
           && (n = some(fd, room, most - total < sizeof room ? most - total : sizeof room)) > 0) {
        total += n;
        for (ssize_t i = 0; i < n; i++) {
            low = (low + (unsigned char)room[i]) % 65521;
            high = (high + low) % 65521;
        }
    }
    return (struct sum){total, high << 16 | low, n < 0 ? strerror(errno) : n ? "more" : "end"};
}

static void sum(int fd)
{
    struct sum all = sum_of(fd, UINT64_MAX);

    dprintf(2, "%llu %08x %s\n", (unsigned long long)all.total, all.checksum, all.end);
    send(fd, "done", 4, MSG_NOSIGNAL);
}

/* An option of one or two numbers. */
static void tell_option(const char *name, int fd, int level, int option)
{
    long long value[2] = {0, 0};
    socklen_t len = sizeof value;

    getsockopt(fd, level, option, value, &len);
    dprintf(2, "\"%s\": [%lld, %lld], ", name, value[0], value[1]);
}

static int take(int fd, uint64_t most)
{
    struct sockaddr_in6 peer = {0};
    socklen_t len = sizeof peer;
    struct sum first = sum_of(fd, most);
    struct f_owner_ex owner = {-1, -1};
    int sig = fcntl(fd, F_GETSIG);

    getpeername(fd, (struct sockaddr *)&peer, &len);
    fcntl(fd, F_GETOWN_EX, &owner);
    dprintf(2, "{\"bytes\": %llu, \"sum\": %u, \"end\": \"%s\", \"port\": %u, \"state\": {",
            (unsigned long long)first.total, first.checksum, first.end, ntohs(peer.sin6_port));
    tell_option("rcvtimeo", fd, SOL_SOCKET, SO_RCVTIMEO);
    tell_option("sndtimeo", fd, SOL_SOCKET, SO_SNDTIMEO);
    tell_option("keepalive", fd, SOL_SOCKET, SO_KEEPALIVE);
    tell_option("linger", fd, SOL_SOCKET, SO_LINGER);
    tell_option("lowat", fd, SOL_SOCKET, SO_RCVLOWAT);
    tell_option("oobinline", fd, SOL_SOCKET, SO_OOBINLINE);
    tell_option("priority", fd, SOL_SOCKET, SO_PRIORITY);
    tell_option("nodelay", fd, IPPROTO_TCP, TCP_NODELAY);
    tell_option("cork", fd, IPPROTO_TCP, TCP_CORK);
    tell_option("keepidle", fd, IPPROTO_TCP, TCP_KEEPIDLE);
    tell_option("user_timeout", fd, IPPROTO_TCP, TCP_USER_TIMEOUT);
    tell_option("tos", fd, IPPROTO_IP, IP_TOS);
    dprintf(2, "\"owner\": %d, \"signal\": %d, \"flags\": %d}}\n", owner.pid, sig,
            fcntl(fd, F_GETFL));
    return copy(fd, fd);
}

static int receive(int from)
{
    char byte, control[CMSG_SPACE(sizeof(int))];
    struct iovec iov = {&byte, 1};
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = control,
                         .msg_controllen = sizeof control};
    int fd = -1;

    if (recvmsg(from, &msg, 0) != 1 || !CMSG_FIRSTHDR(&msg)) {
        return -1;
    }
    memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&msg)), sizeof fd);
    return fd;
}

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "cat") == 0) {
        return copy(0, 1);
    }
    if (argc == 3 && strcmp(argv[1], "passed") == 0) {
        int fd = receive(atoi(argv[2]));

        return fd < 0 ? 3 : copy(fd, fd);
    }
    if (argc == 2 && strcmp(argv[1], "sum") == 0) {
        sum(0);
        return 0;
    }
    if (argc == 3 && strcmp(argv[1], "sum") == 0) {
        int fd = receive(atoi(argv[2]));

        if (fd < 0) {
            return 3;
        }
        sum(fd);
        return 0;
    }
    if (argc == 4 && strcmp(argv[1], "take") == 0) {
        return take(atoi(argv[3]), strtoull(argv[2], NULL, 10));
    }
    if (argc == 5 && strcmp(argv[1], "take") == 0) {
        int fd = receive(atoi(argv[4]));

        return fd < 0 ? 3 : take(fd, strtoull(argv[2], NULL, 10));
    }
    return 4;
}
