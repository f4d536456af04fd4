/* A statically linked program without the library: what an executed image or a receiver of passed
 * descriptors may be.
 *
 *   unaware cat           copies descriptor 0 to 1 until the end
 *   unaware passed N      takes a descriptor from the socket on descriptor N, copies it to itself
 *   unaware sum           tells on descriptor 2 what it read from descriptor 0 and how that ended, and
 *                         answers "done"
 *   unaware sum N         the same with a descriptor from the socket on descriptor N
 */
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

static int copy(int in, int out)
{
    char room[65536];
    ssize_t n;

    while ((n = read(in, room, sizeof room)) > 0) {
        for (ssize_t at = 0, sent; at < n; at += sent) {
            sent = write(out, room + at, n - at);
            if (sent < 0) {
                return 2;
            }
        }
    }
    return n < 0;
}

/* Bytes, their Adler-32 checksum, and the error at the end. */
static void sum(int fd)
{
    static char room[65536];
    uint32_t low = 1, high = 0;
    uint64_t total = 0;
    ssize_t n;

    while ((n = read(fd, room, sizeof room)) > 0) {
        total += n;
        for (ssize_t i = 0; i < n; i++) {
            low = (low + (unsigned char)room[i]) % 65521;
            high = (high + low) % 65521;
        }
    }
    dprintf(2, "%llu %08x %s\n", (unsigned long long)total, high << 16 | low,
            n < 0 ? strerror(errno) : "end");
    send(fd, "done", 4, MSG_NOSIGNAL);
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
    return 4;
}
