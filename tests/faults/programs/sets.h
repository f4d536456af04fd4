/* What the programs about epoll sets share: some connections to one peer that does as it is told.
 *
 * The peer is forked before there is a socket, so that the two are strangers to each other. It is told over a
 * socket pair and says when it is done. A message names its connection and its place in it.
 */
#include "base.h"

#include <fcntl.h>
#include <stdint.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>

#define LIMIT_S 50
#define SIZE 1024
#define MOST 8
/* Round trips that earn the lanes. */
#define WARM 50
/* A sleep that is not ended by then is one that nobody ends. */
#define PATIENCE_MS 15000

struct message {
    int which;
    int place;
    char rest[SIZE - 2 * sizeof(int)];
};

struct order {
    char what;
    int which;
    long n;
};

static int conns[MOST];
static pid_t peer;
static int line;

static inline struct message made(int which, int place)
{
    struct message message = {.which = which, .place = place};

    memset(message.rest, 'a' + (which + place) % 26, sizeof message.rest);
    return message;
}

static inline int is_made(const struct message *message)
{
    struct message wanted = made(message->which, message->place);

    return memcmp(&wanted, message, sizeof wanted) == 0;
}

/* Whether a call that answered n is to be made again: it was interrupted, or was told EAGAIN; then once the socket is
 * ready for it. */
static inline int is_to_repeat(ssize_t n, int fd, short events)
{
    if (n < 0 && errno == EAGAIN) {
        struct pollfd entry = {fd, events, 0};

        poll(&entry, 1, -1);
        return 1;
    }
    return n < 0 && errno == EINTR;
}

static inline void give(int fd, int which, int place)
{
    struct message message = made(which, place);
    const char *from = (const char *)&message;

    for (size_t at = 0; at < SIZE;) {
        ssize_t n = send(fd, from + at, SIZE - at, MSG_NOSIGNAL);

        if (is_to_repeat(n, fd, POLLOUT))
            continue;
        check(n > 0);
        at += n;
    }
}

/* Takes a whole message that is there or will be. False at the end of the stream. */
static inline int take(int fd, struct message *message)
{
    char *to = (char *)message;

    for (size_t at = 0; at < SIZE;) {
        ssize_t n = recv(fd, to + at, SIZE - at, 0);

        if (is_to_repeat(n, fd, POLLIN))
            continue;
        check(n >= 0);
        if (n == 0) {
            check(at == 0);
            return 0;
        }
        at += n;
    }
    check(is_made(message));
    return 1;
}

static inline void set_blocking(int fd, int is_blocking)
{
    int flags = fcntl(fd, F_GETFL);

    check(fcntl(fd, F_SETFL, is_blocking ? flags & ~O_NONBLOCK : flags | O_NONBLOCK) == 0);
}

/* Keeps one message under way on each of the first n connections, until each has been answered so often or was
 * closed by the other end. */
static inline void converse(int n, int times)
{
    int places[MOST] = {0}, left = n;
    struct pollfd entries[MOST];
    struct message back;

    for (int i = 0; i < n; i++) {
        entries[i] = (struct pollfd){conns[i], POLLIN, 0};
        send(conns[i], (struct message[]){made(i, 0)}, SIZE, MSG_NOSIGNAL);
    }
    while (left) {
        check(poll(entries, n, -1) > 0);
        for (int i = 0; i < n; i++) {
            ssize_t got;

            if (entries[i].fd < 0 || !entries[i].revents)
                continue;
            got = recv(conns[i], &back, SIZE, MSG_WAITALL);
            if (got == SIZE) {
                check(is_made(&back) && back.which == i && back.place == places[i]);
                if (++places[i] < times) {
                    back = made(i, places[i]);
                    send(conns[i], &back, SIZE, MSG_NOSIGNAL);
                    continue;
                }
            }
            entries[i].fd = -1;
            left--;
        }
    }
}

/* The peer: e echoes n messages, s sends n, v converses on the first `which`, w shuts down writing, c closes, z closes
 * with a reset, x exits. */
static inline void obey(int from)
{
    struct message message;
    struct order order;

    while (recv(from, &order, sizeof order, 0) == sizeof order) {
        struct linger hard = {1, 0};
        int fd = conns[order.which % MOST];
        char done = 'd';

        switch (order.what) {
        case 'e':
            for (long i = 0; i < order.n; i++) {
                check(take(fd, &message));
                give(fd, message.which, message.place);
            }
            break;
        case 's':
            for (long i = 0; i < order.n; i++)
                give(fd, order.which, i);
            break;
        case 'v':
            converse(order.which, order.n);
            break;
        case 'w':
            check(shutdown(fd, SHUT_WR) == 0);
            break;
        case 'z':
            check(setsockopt(fd, SOL_SOCKET, SO_LINGER, &hard, sizeof hard) == 0);
            /* fall through */
        case 'c':
            check(close(fd) == 0);
            break;
        default:
            exit(0);
        }
        check(send(from, &done, 1, MSG_NOSIGNAL) == 1);
    }
    exit(0);
}

/* Gives an order without waiting until it is done. */
static inline void tell(char what, int which, long n)
{
    struct order order = {what, which, n};

    check(send(line, &order, sizeof order, MSG_NOSIGNAL) == sizeof order);
}

static inline void answered(void)
{
    char done;
    ssize_t n;

    while ((n = recv(line, &done, 1, 0)) < 0 && errno == EINTR) {
    }
    check(n == 1);
}

static inline void ask(char what, int which, long n)
{
    tell(what, which, n);
    answered();
}

/* Round trips on one connection. */
static inline void ping(int which, int rounds)
{
    struct message back;

    tell('e', which, rounds);
    for (int i = 0; i < rounds; i++) {
        give(conns[which], which, i);
        check(take(conns[which], &back) && back.place == i);
    }
    answered();
}

/* A peer that makes n connections to where it is told. */
static inline void begin_peer(int n)
{
    struct sockaddr_in address;
    int lines[2], one = 1;

    check(n <= MOST);
    check(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, lines) == 0);
    peer = fork();
    check(peer >= 0);
    if (peer == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        alarm(LIMIT_S);
        close(lines[0]);
        check(recv(lines[1], &address, sizeof address, 0) == sizeof address);
        for (int i = 0; i < n; i++) {
            conns[i] = socket(AF_INET, SOCK_STREAM, 0);
            check(connect(conns[i], (struct sockaddr *)&address, sizeof address) == 0);
            setsockopt(conns[i], IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        }
        obey(lines[1]);
    }
    line = lines[0];
    close(lines[1]);
}

/* Its connections, on their lanes if they may have any. `sets`, unless null: two sets in which callers are
 * waited for. */
static inline void accept_some(int hear, const struct sockaddr_in *address, int n, const int *sets)
{
    int one = 1;

    /* All may come before the first is taken. */
    check(listen(hear, MOST) == 0);
    check(send(line, address, sizeof *address, 0) == sizeof *address);
    for (int i = 0; i < n; i++) {
        for (int turn = 0; sets; turn++) {
            struct epoll_event event;

            if (epoll_wait(sets[turn % 2], &event, 1, 20) == 1)
                break;
            check(turn < PATIENCE_MS / 20);
        }
        conns[i] = accept(hear, NULL, NULL);
        check(conns[i] >= 0);
        setsockopt(conns[i], IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    }
    for (int i = 0; i < n; i++)
        ping(i, WARM);
}

/* n connections with a fresh peer. */
static inline void connect_some(int n)
{
    struct sockaddr_in address;
    int hear;

    begin_peer(n);
    hear = loopback_listener(&address);
    accept_some(hear, &address, n, NULL);
    close(hear);
}

/* The peer has done its part. */
static inline void dismiss(void)
{
    int status;

    tell('x', 0, 0);
    close(line);
    check(waitpid(peer, &status, 0) == peer && status == 0);
}

static inline void add(int set, int fd, uint32_t events, uint64_t data)
{
    struct epoll_event event = {.events = events, .data.u64 = data};

    check(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
}

static inline void modify(int set, int fd, uint32_t events, uint64_t data)
{
    struct epoll_event event = {.events = events, .data.u64 = data};

    check(epoll_ctl(set, EPOLL_CTL_MOD, fd, &event) == 0);
}

/* What is added to EPOLLIN: "level", "edge" or "once". */
static inline uint32_t way_of(const char *word)
{
    if (!strcmp(word, "edge"))
        return EPOLLET;
    if (!strcmp(word, "once"))
        return EPOLLONESHOT;
    check(!strcmp(word, "level"));
    return 0;
}
