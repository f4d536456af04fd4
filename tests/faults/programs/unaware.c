/* A statically linked program without the library: what an executed image or a receiver of passed
 * descriptors may be.
 *
 *   unaware cat           copies descriptor 0 to 1 until the end
 *   unaware passed N      takes a descriptor from the socket on descriptor N, copies it to itself
 */
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
    return 4;
}
