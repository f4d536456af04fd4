/* An echo server and its client that reach their sockets by libc's `syscall`, with every number there is for it.
 *
 *   numbers server PORT     serves one connection after the other
 *   numbers client PORT     talks to it over two of them, prints what its calls gave
 *
 * Pieces go to and fro, each one sent, waited for and received by another call: the three tables have no common
 * divisor in their lengths, so that every call meets every other.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define PIECE 32768
#define TURNS 210
#define CONNECTIONS 2
#define LIMIT_S 80
/* Numbers for duplicates. */
#define FIRST 100
#define COUNT(table) (sizeof(table) / sizeof *(table))

static int file, set;

static void must(int ok, const char *what)
{
    if (!ok) {
        fprintf(stderr, "%s: %s\n", what, strerror(errno));
        exit(3);
    }
}

static void say(const char *what, long result)
{
    printf("%s: %ld%s%s\n", what, result, result < 0 ? " " : "", result < 0 ? strerror(errno) : "");
}

/* ---- sending ---- */

static long by_write(int fd, char *from, size_t n) { return syscall(SYS_write, fd, from, n); }
static long by_sendto(int fd, char *from, size_t n) { return syscall(SYS_sendto, fd, from, n, MSG_NOSIGNAL, NULL, 0); }

static long by_writev(int fd, char *from, size_t n)
{
    struct iovec parts[3] = {{from, n / 5}, {from + n / 5, 0}, {from + n / 5, n - n / 5}};

    return syscall(SYS_writev, fd, parts, 3);
}

static long by_sendmsg(int fd, char *from, size_t n)
{
    struct iovec parts[2] = {{from, n / 3}, {from + n / 3, n - n / 3}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};

    return syscall(SYS_sendmsg, fd, &message, MSG_NOSIGNAL);
}

/* How much the messages of a vector have moved. */
static long moved(struct mmsghdr *messages, long count)
{
    long n = count < 0 ? -1 : 0;

    for (long i = 0; i < count; i++) {
        n += messages[i].msg_len;
    }
    return n;
}

static long by_sendmmsg(int fd, char *from, size_t n)
{
    struct iovec parts[2] = {{from, n / 4}, {from + n / 4, n - n / 4}};
    struct mmsghdr messages[2] = {{.msg_hdr = {.msg_iov = &parts[0], .msg_iovlen = 1}},
                                  {.msg_hdr = {.msg_iov = &parts[1], .msg_iovlen = 1}}};
    long count = syscall(SYS_sendmmsg, fd, messages, 2, MSG_NOSIGNAL);

    /* A first message that was not taken whole would leave a hole. */
    must(count < 2 || messages[0].msg_len == n / 4, "the first message whole");
    return moved(messages, count);
}

static long by_sendfile(int fd, char *from, size_t n)
{
    off_t at = 0;

    must(pwrite(file, from, n, 0) == (ssize_t)n, "pwrite");
    return syscall(SYS_sendfile, fd, file, &at, n);
}

static long (*const senders[])(int, char *, size_t) = {by_write,   by_sendto,   by_writev,
                                                       by_sendmsg, by_sendmmsg, by_sendfile};

/* ---- receiving ---- */

static long by_read(int fd, char *to, size_t n) { return syscall(SYS_read, fd, to, n); }

static long by_recvfrom(int fd, char *to, size_t n)
{
    struct sockaddr_storage from;
    socklen_t len = sizeof from;

    return syscall(SYS_recvfrom, fd, to, n, 0, &from, &len);
}

static long by_readv(int fd, char *to, size_t n)
{
    struct iovec parts[2] = {{to, n / 7}, {to + n / 7, n - n / 7}};

    return syscall(SYS_readv, fd, parts, 2);
}

static long by_recvmsg(int fd, char *to, size_t n)
{
    struct iovec parts[2] = {{to, n / 2}, {to + n / 2, n - n / 2}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};

    return syscall(SYS_recvmsg, fd, &message, 0);
}

static long by_recvmmsg(int fd, char *to, size_t n)
{
    struct iovec part = {to, n};
    struct mmsghdr message = {.msg_hdr = {.msg_iov = &part, .msg_iovlen = 1}};

    return moved(&message, syscall(SYS_recvmmsg, fd, &message, 1, MSG_WAITFORONE, NULL));
}

static long (*const receivers[])(int, char *, size_t) = {by_read, by_recvfrom, by_readv, by_recvmsg, by_recvmmsg};

/* ---- waiting: for bytes, LIMIT_S at most ---- */

static long by_poll(int fd)
{
    struct pollfd entry = {fd, POLLIN, 0};

    return syscall(SYS_poll, &entry, 1, LIMIT_S * 1000) == 1 && entry.revents == POLLIN;
}

static long by_ppoll(int fd)
{
    struct pollfd entry = {fd, POLLIN, 0};
    struct timespec limit = {LIMIT_S, 0};

    return syscall(SYS_ppoll, &entry, 1, &limit, NULL, 8) == 1 && entry.revents == POLLIN;
}

static long by_select(int fd)
{
    struct timeval limit = {LIMIT_S, 0};
    fd_set bits;

    FD_ZERO(&bits);
    FD_SET(fd, &bits);
    return syscall(SYS_select, fd + 1, &bits, NULL, NULL, &limit) == 1 && FD_ISSET(fd, &bits);
}

static long by_pselect6(int fd)
{
    struct timespec limit = {LIMIT_S, 0};
    sigset_t none;
    struct {
        const sigset_t *mask;
        size_t size;
    } last = {&none, 8};
    fd_set bits;

    sigemptyset(&none);
    FD_ZERO(&bits);
    FD_SET(fd, &bits);
    return syscall(SYS_pselect6, fd + 1, &bits, NULL, NULL, &limit, &last) == 1 && FD_ISSET(fd, &bits);
}

static int is_it(long count, const struct epoll_event *event, int fd)
{
    return count == 1 && event->events == EPOLLIN && event->data.fd == fd;
}

static long by_epoll_wait(int fd)
{
    struct epoll_event events[4];

    return is_it(syscall(SYS_epoll_wait, set, events, 4, LIMIT_S * 1000), events, fd);
}

static long by_epoll_pwait(int fd)
{
    struct epoll_event events[4];

    return is_it(syscall(SYS_epoll_pwait, set, events, 4, -1, NULL, 8), events, fd);
}

static long by_epoll_pwait2(int fd)
{
    struct timespec limit = {LIMIT_S, 0};
    struct epoll_event events[4];

    return is_it(syscall(SYS_epoll_pwait2, set, events, 4, &limit, NULL, 8), events, fd);
}

static long (*const waits[])(int) = {by_poll,       by_ppoll,       by_select,      by_pselect6,
                                     by_epoll_wait, by_epoll_pwait, by_epoll_pwait2};

/* ---- both ends ---- */

static void send_all(int fd, char *from, size_t n, int turn)
{
    while (n) {
        struct pollfd entry = {fd, POLLOUT, 0};
        long sent = senders[turn % COUNT(senders)](fd, from, n);

        if (sent < 0 && errno == EAGAIN) {
            must(syscall(SYS_poll, &entry, 1, -1) == 1, "poll for room");
            continue;
        }
        must(sent > 0, "send");
        from += sent, n -= sent;
    }
}

static struct sockaddr_in address_of(int port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};

    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return address;
}

static void server(int port)
{
    struct sockaddr_in address = address_of(port);
    static char room[PIECE];
    int one = 1;
    int listener = syscall(SYS_socket, AF_INET, SOCK_STREAM, 0);

    must(syscall(SYS_setsockopt, listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) == 0, "SO_REUSEADDR");
    must(syscall(SYS_bind, listener, &address, sizeof address) == 0, "bind");
    must(syscall(SYS_listen, listener, 8) == 0, "listen");
    for (int number = 0;; number++) {
        int fd = number % 2 ? syscall(SYS_accept4, listener, NULL, NULL, SOCK_CLOEXEC)
                            : syscall(SYS_accept, listener, NULL, NULL);
        long n;

        must(fd >= 0, "accept");
        must(syscall(SYS_setsockopt, fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one) == 0, "TCP_NODELAY");
        for (int turn = 0; (n = receivers[turn % COUNT(receivers)](fd, room, sizeof room)) > 0; turn++) {
            send_all(fd, room, n, turn);
        }
        must(n == 0, "receive");
        must(syscall(SYS_close, fd) == 0, "close");
    }
}

/* A piece to the server and back. */
static void turn_over(int fd, int turn, int size)
{
    static char out[PIECE], back[PIECE];

    for (int i = 0; i < size; i++) {
        out[i] = ((unsigned)(turn * PIECE + i) * 2654435761u) >> 13;
    }
    send_all(fd, out, size, turn);
    for (int got = 0; got < size;) {
        long more;

        must(waits[turn % COUNT(waits)](fd), "the wait sees this connection and its bytes");
        more = receivers[turn % COUNT(receivers)](fd, back + got, size - got);
        must(more > 0, "receive");
        got += more;
    }
    must(memcmp(out, back, size) == 0, "the same bytes");
}

static int connected(int port, int number)
{
    struct sockaddr_in address = address_of(port);
    int waits_itself = number % 2, one = 1, error = -1;
    int fd = syscall(SYS_socket, AF_INET, SOCK_STREAM | (waits_itself ? SOCK_NONBLOCK : 0), 0);
    struct pollfd entry = {fd, POLLOUT, 0};
    socklen_t len = sizeof error;

    must(syscall(SYS_setsockopt, fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one) == 0, "TCP_NODELAY");
    if (syscall(SYS_connect, fd, &address, sizeof address) != 0) {
        must(waits_itself && errno == EINPROGRESS, "connect");
    }
    must(syscall(SYS_poll, &entry, 1, -1) == 1, "poll for the connection");
    must(syscall(SYS_getsockopt, fd, SOL_SOCKET, SO_ERROR, &error, &len) == 0 && error == 0, "SO_ERROR");
    must(syscall(SYS_fcntl, fd, F_SETFL, O_NONBLOCK) == 0, "O_NONBLOCK");
    return fd;
}

/* What the kernel says, and both lanes together. */
static void ask(int fd)
{
    struct sockaddr_in name;
    socklen_t len = sizeof name;
    int value = -1;
    static char out[1000], back[1000];

    say("getpeername", syscall(SYS_getpeername, fd, &name, &len));
    say("family", name.sin_family == AF_INET && name.sin_addr.s_addr == htonl(INADDR_LOOPBACK));
    len = sizeof value;
    say("getsockopt", syscall(SYS_getsockopt, fd, SOL_SOCKET, SO_TYPE, &value, &len));
    say("type", value);
    say("flags", syscall(SYS_fcntl, fd, F_GETFL) & O_NONBLOCK);
    say("FIONREAD", syscall(SYS_ioctl, fd, FIONREAD, &value));
    say("unread", value);
    say("nothing there", syscall(SYS_recvfrom, fd, back, sizeof back, 0, NULL, NULL));
    memset(out, 'f', sizeof out);
    send_all(fd, out, sizeof out, 0);
    for (int looks = 0; value < (int)sizeof back && looks < 8000; looks++) {
        must(by_poll(fd), "poll");
        must(syscall(SYS_ioctl, fd, FIONREAD, &value) == 0, "FIONREAD");
        usleep(1000);
    }
    say("unread", value);
    say("peek", syscall(SYS_recvfrom, fd, back, 10, MSG_PEEK, NULL, NULL));
    say("all", syscall(SYS_recvfrom, fd, back, sizeof back, 0, NULL, NULL));
    say("as sent", memcmp(out, back, sizeof back));
}

/* The connection under one number after the other. */
static int renumbered(int fd)
{
    struct epoll_event event = {.events = EPOLLIN, .data.fd = FIRST + 3};
    int copy;

    say("dup2", syscall(SYS_dup2, fd, FIRST));
    say("dup3", syscall(SYS_dup3, fd, FIRST + 1, O_CLOEXEC));
    copy = syscall(SYS_dup, fd);
    must(copy >= 0, "dup");
    say("F_DUPFD", syscall(SYS_fcntl, fd, F_DUPFD_CLOEXEC, FIRST + 3));
    say("EPOLL_CTL_DEL", syscall(SYS_epoll_ctl, set, EPOLL_CTL_DEL, fd, NULL));
    say("close", syscall(SYS_close, fd));
    /* Turns whose waits need no set. */
    turn_over(FIRST, 0, PIECE);
    turn_over(FIRST + 1, 1, PIECE);
    say("close_range", syscall(SYS_close_range, FIRST, FIRST + 1, 0));
    say("gone", syscall(SYS_sendto, FIRST, "x", 1, MSG_NOSIGNAL, NULL, 0));
    say("gone", syscall(SYS_read, FIRST + 1, &event, 1));
    turn_over(copy, 2, PIECE);
    say("close", syscall(SYS_close, copy));
    say("EPOLL_CTL_ADD", syscall(SYS_epoll_ctl, set, EPOLL_CTL_ADD, FIRST + 3, &event));
    return FIRST + 3;
}

/* What comes next, the end too. */
static long until_there(int fd, char *to)
{
    struct pollfd entry = {fd, POLLIN, 0};

    must(syscall(SYS_poll, &entry, 1, -1) == 1, "poll for the last bytes");
    return syscall(SYS_read, fd, to, PIECE);
}

static void client(int port)
{
    static char back[PIECE];

    for (int number = 0; number < CONNECTIONS; number++) {
        int fd = connected(port, number);
        struct epoll_event event = {.events = 0, .data.fd = fd};

        /* By its name: a set that the library did not see made is the kernel's. */
        set = epoll_create1(EPOLL_CLOEXEC);
        must(set >= 0, "epoll_create1");
        say("EPOLL_CTL_ADD", syscall(SYS_epoll_ctl, set, EPOLL_CTL_ADD, fd, &event));
        event.events = EPOLLIN;
        say("EPOLL_CTL_MOD", syscall(SYS_epoll_ctl, set, EPOLL_CTL_MOD, fd, &event));
        for (int turn = 0; turn < TURNS; turn++) {
            /* Small ones first, which earn the lanes. */
            turn_over(fd, turn, turn < 60 ? 1 + turn : PIECE);
        }
        ask(fd);
        fd = renumbered(fd);
        for (int turn = 0; turn < TURNS; turn++) {
            turn_over(fd, turn, PIECE);
        }
        send_all(fd, back, 3, 0);
        say("shutdown", syscall(SYS_shutdown, fd, SHUT_WR));
        say("send after it", syscall(SYS_sendto, fd, "x", 1, MSG_NOSIGNAL, NULL, 0));
        for (int got = 0; got < 3; got += until_there(fd, back)) {
        }
        say("end of stream", until_there(fd, back));
        say("close", syscall(SYS_close, fd));
        say("close twice", syscall(SYS_close, fd));
        say("close", syscall(SYS_close, set));
    }
}

int main(int argc, char **argv)
{
    must(argc == 3, "numbers server|client PORT");
    signal(SIGPIPE, SIG_IGN);
    file = syscall(SYS_memfd_create, "numbers", MFD_CLOEXEC);
    must(file >= 0, "memfd_create");
    if (strcmp(argv[1], "server") == 0) {
        server(atoi(argv[2]));
    }
    alarm(LIMIT_S);
    client(atoi(argv[2]));
    return 0;
}
