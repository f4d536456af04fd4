/* What the C programs share: a connection to a child that does as it is told.
 *
 * The child is told over a socket pair and answers when it is done, so that nothing waits for time.
 * Payload is a pattern of its position, each way its own, so that every byte is checked.
 */
#include "base.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/ioctl.h>

#define LIMIT_S 50

/* The connection, the child and the way to tell it. */
static int sock;
static pid_t child;
static int line;
/* Whether the next connection shall have small buffers in the kernel. */
static int small;
/* Positions of what each end has sent. */
static long ours, theirs;

#define LAP 251
#define BLOCK 65536
#define BLOCKS 7

/* What a block of the pattern is a piece of, made once: looking at bytes shall take less time than moving them. */
static char table[BLOCKS][LAP + BLOCK];

__attribute__((constructor)) static void make_blocks(void)
{
    for (int i = 0; i < BLOCKS; i++) {
        for (int j = 0; j < LAP + BLOCK; j++) {
            table[i][j] = (char)(j % LAP + i);
        }
    }
}

static inline char pattern(long at)
{
    return table[at / BLOCK % BLOCKS][at % LAP];
}

/* How much of n bytes from a position on lies in one block. */
static inline size_t in_block(long at, size_t n)
{
    size_t left = BLOCK - at % BLOCK;

    return n < left ? n : left;
}

static inline void fill(char *to, long at, size_t n)
{
    for (size_t some; n; to += some, at += some, n -= some) {
        some = in_block(at, n);
        memcpy(to, table[at / BLOCK % BLOCKS] + at % LAP, some);
    }
}

static inline int is_pattern(const char *from, long at, size_t n)
{
    for (size_t some; n; from += some, at += some, n -= some) {
        some = in_block(at, n);
        if (memcmp(from, table[at / BLOCK % BLOCKS] + at % LAP, some) != 0) {
            return 0;
        }
    }
    return 1;
}

/* Whether this thread is in a call of `send_pattern` or `receive_pattern`: for handlers that count. */
static _Thread_local volatile sig_atomic_t is_calling;

/* Sends the next n bytes of a direction's pattern. */
static inline void send_pattern(int fd, long *at, size_t n)
{
    static _Thread_local char room[65536];

    while (n) {
        size_t some = n < sizeof room ? n : sizeof room;
        ssize_t sent;

        fill(room, *at, some);
        is_calling = 1;
        sent = send(fd, room, some, MSG_NOSIGNAL);
        is_calling = 0;
        if (sent < 0 && errno == EINTR) {
            continue;
        }
        check(sent > 0);
        *at += sent;
        n -= sent;
    }
}

/* Receives n bytes of it, or what comes before the end; how much. -1: an error. */
static inline long receive_pattern(int fd, long *at, size_t n)
{
    static _Thread_local char room[65536];
    size_t got = 0;

    while (got < n) {
        size_t some = n - got < sizeof room ? n - got : sizeof room;
        ssize_t more;

        is_calling = 1;
        more = recv(fd, room, some, 0);
        is_calling = 0;
        if (more < 0 && errno == EINTR) {
            continue;
        }
        if (more < 0) {
            return -1;
        }
        if (more == 0) {
            break;
        }
        check(is_pattern(room, *at, more));
        *at += more;
        got += more;
    }
    return got;
}

struct order {
    char what;
    long n;
};

struct answer {
    long n;
    int error;
};

/* Sends and receives n bytes at the same time, as both can go on. */
static inline void both_ways(int fd, long n)
{
    static char out[65536], in[65536];
    long left_out = n, left_in = n;

    while (left_out || left_in) {
        struct pollfd entry = {fd, (left_in ? POLLIN : 0) | (left_out ? POLLOUT : 0), 0};
        ssize_t moved;

        check(poll(&entry, 1, -1) == 1);
        if (left_in && entry.revents & POLLIN) {
            size_t some = left_in < (long)sizeof in ? left_in : (long)sizeof in;

            moved = recv(fd, in, some, MSG_DONTWAIT);
            check(moved > 0 || (moved < 0 && errno == EAGAIN));
            if (moved > 0) {
                check(is_pattern(in, ours, moved));
                ours += moved;
                left_in -= moved;
            }
        }
        if (left_out && entry.revents & POLLOUT) {
            size_t some = left_out < (long)sizeof out ? left_out : (long)sizeof out;

            fill(out, theirs, some);
            moved = send(fd, out, some, MSG_DONTWAIT | MSG_NOSIGNAL);
            check(moved > 0 || (moved < 0 && errno == EAGAIN));
            if (moved > 0) {
                theirs += moved;
                left_out -= moved;
            }
        }
    }
}

/* The child: e echoes, s sends, r receives, b does both, p polls, u counts unread bytes, q reads to the end, c closes, x exits. */
static inline void obey(int fd, int from)
{
    struct order order;
    char room[100];

    while (recv(from, &order, sizeof order, 0) == sizeof order) {
        struct answer answer = {0, 0};
        struct pollfd entry = {fd, POLLIN, 0};

        switch (order.what) {
        case 'e':
            for (long i = 0; i < order.n; i++) {
                check(recv(fd, room, sizeof room, MSG_WAITALL) == sizeof room);
                check(send(fd, room, sizeof room, MSG_NOSIGNAL) == sizeof room);
            }
            break;
        case 's':
            send_pattern(fd, &theirs, order.n);
            break;
        case 'r':
            answer.n = receive_pattern(fd, &ours, order.n);
            answer.error = answer.n < 0 ? errno : 0;
            break;
        case 'b':
            both_ways(fd, order.n);
            break;
        case 'p':
            poll(&entry, 1, 0);
            answer.n = entry.revents;
            break;
        case 'u': {
            int unread = -1;

            ioctl(fd, FIONREAD, &unread);
            answer.n = unread;
            break;
        }
        case 'q':
            answer.n = receive_pattern(fd, &ours, 1L << 40);
            answer.error = answer.n < 0 ? errno : 0;
            break;
        case 'c':
            close(fd);
            break;
        default:
            exit(0);
        }
        check(send(from, &answer, sizeof answer, MSG_NOSIGNAL) == sizeof answer);
    }
    exit(0);
}

/* Gives an order without waiting until it is done. */
static inline void tell(char what, long n)
{
    struct order order = {what, n};

    check(send(line, &order, sizeof order, MSG_NOSIGNAL) == sizeof order);
}

static inline struct answer answered(void)
{
    struct answer answer;
    ssize_t n;

    while ((n = recv(line, &answer, sizeof answer, 0)) < 0 && errno == EINTR) {
    }
    check(n == sizeof answer);
    return answer;
}

static inline struct answer ask(char what, long n)
{
    tell(what, n);
    return answered();
}

/* Round trips, which earn the lanes. */
static inline void ping(int rounds)
{
    char out[100], back[100];

    tell('e', rounds);
    for (int i = 0; i < rounds; i++) {
        size_t at = 0;

        memset(out, i, sizeof out);
        while (at < sizeof out) {
            ssize_t n = send(sock, out + at, sizeof out - at, MSG_NOSIGNAL);

            check(n > 0 || errno == EINTR);
            at += n > 0 ? n : 0;
        }
        for (at = 0; at < sizeof back;) {
            ssize_t n = recv(sock, back + at, sizeof back - at, 0);

            check(n > 0 || (n < 0 && errno == EINTR));
            at += n > 0 ? n : 0;
        }
        check(memcmp(out, back, sizeof out) == 0);
    }
    answered();
}

/* A fresh connection to a fresh child, on its lanes if it may have any. */
static inline void connect_to_child(void)
{
    struct sockaddr_in address;
    int hear = loopback_listener(&address), one = 1, lines[2];

    ours = theirs = 0;
    check(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, lines) == 0);
    fflush(stdout);
    child = fork();
    check(child >= 0);
    if (child == 0) {
        int fd = socket(AF_INET, SOCK_STREAM, 0);

        alarm(LIMIT_S);
        if (small) {
            check(setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof small) == 0);
        }
        check(connect(fd, (struct sockaddr *)&address, sizeof address) == 0);
        close(hear);
        close(lines[0]);
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        obey(fd, lines[1]);
    }
    line = lines[0];
    close(lines[1]);
    sock = accept(hear, NULL, NULL);
    check(sock >= 0);
    close(hear);
    if (small) {
        check(setsockopt(sock, SOL_SOCKET, SO_SNDBUF, &small, sizeof small) == 0);
    }
    setsockopt(sock, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    ping(50);
}

/* The child has done its part. */
static inline void dismiss(void)
{
    int status;

    tell('x', 0);
    close(line);
    check(waitpid(child, &status, 0) == child && status == 0);
}

/* The connection's orderly end: everything of ours was read, and the end arrives. */
static inline void finish(void)
{
    struct answer last;
    char byte;

    check(shutdown(sock, SHUT_WR) == 0);
    last = ask('q', 0);
    check(last.n == 0 && last.error == 0);
    ask('c', 0);
    check(recv(sock, &byte, 1, 0) == 0);
    check(close(sock) == 0);
    dismiss();
}

/* Open descriptors of this process, the library's among them. */
static inline int descriptors(void)
{
    DIR *all = opendir("/proc/self/fd");
    int count = 0;

    check(all);
    while (readdir(all)) {
        count++;
    }
    closedir(all);
    return count;
}
