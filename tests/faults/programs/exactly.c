/* What a program learns of a connection on its lanes, as exactly as over TCP.
 *
 *   exactly limits         negative limits of time: calls that do not wait
 *   exactly events WAY     readable and writable: one event that says both
 *   exactly unread         bytes that are left to read, as TCP_INQ counts them
 *   exactly whole LEAST MOST  messages of so many bytes, each sent by one call to a reader that is awake
 *   exactly queued         bytes that the other end has not: none, though its program has not read them
 *   exactly long SIZE      what is there of one longer send, of which the last page is still to be copied
 *   exactly waits          limits of waits, beside a clock that stands still (still.c)
 *
 * Prints one line of JSON.
 */
#include "ends.h"

#include <stdint.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/time.h>

#define TIMES 20
#define PAGE 4096

static void on_alarm(int number)
{
    (void)number;
}

/* A call's result: bytes, or the error that it failed with, negative. */
static long result(ssize_t n)
{
    return n < 0 ? -errno : n;
}

/* What one receive of nothing returns after the limit was set. One that waits for ever is interrupted. */
static long received(int option, long seconds, long microseconds)
{
    struct timeval limit = {seconds, microseconds};
    struct itimerval soon = {{0, 0}, {0, 300000}}, never = {{0, 0}, {0, 0}};
    static char room[1 << 20];
    long got = 1;

    if (setsockopt(sock, SOL_SOCKET, option, &limit, sizeof limit) < 0) {
        return -errno;
    }
    setitimer(ITIMER_REAL, &soon, NULL);
    if (option == SO_RCVTIMEO) {
        got = result(recv(sock, room, sizeof room, 0));
    } else {
        while ((got = result(send(sock, room, sizeof room, MSG_NOSIGNAL))) > 0) {
        }
    }
    setitimer(ITIMER_REAL, &never, NULL);
    return got;
}

static void limits(void)
{
    struct sigaction action = {.sa_handler = on_alarm};
    struct timeval shown = {7, 7};
    socklen_t len = sizeof shown;

    check(sigaction(SIGALRM, &action, NULL) == 0);
    printf("{\"seen\": [%ld", received(SO_RCVTIMEO, -1, 0));
    printf(", %ld", received(SO_RCVTIMEO, 0, 0));
    printf(", %ld", received(SO_RCVTIMEO, -3600, 999999));
    /* Refused, so that the limit before holds; then one that is over long before the alarm. */
    printf(", %ld", received(SO_RCVTIMEO, 0, -1));
    printf(", %ld", received(SO_RCVTIMEO, -2, 1000000));
    printf(", %ld", received(SO_RCVTIMEO, 0, 20000));
    check(getsockopt(sock, SOL_SOCKET, SO_RCVTIMEO, &shown, &len) == 0);
    printf(", %ld", received(SO_RCVTIMEO, -1, 5));
    check(getsockopt(sock, SOL_SOCKET, SO_RCVTIMEO, &shown, &len) == 0);
    printf(", %ld, %ld", (long)shown.tv_sec, (long)shown.tv_usec);
    printf(", %ld]}\n", received(SO_SNDTIMEO, -5, 0));
    exit(0);
}

static void events(const char *way)
{
    int is_edge = !strncmp(way, "edge", 4), is_once = strstr(way, "once") != NULL;
    struct epoll_event wanted = {EPOLLIN | EPOLLOUT, {.u64 = 7}}, event;
    int set = -1, both = 0, is_fresh = !strcmp(way, "fresh");

    if (is_edge) {
        wanted.events |= EPOLLET;
    }
    if (is_once) {
        wanted.events |= EPOLLONESHOT;
    }
    ask('s', 1);
    for (int i = 0; i < TIMES; i++) {
        if (set < 0) {
            set = epoll_create1(EPOLL_CLOEXEC);
            check(epoll_ctl(set, EPOLL_CTL_ADD, sock, &wanted) == 0);
        } else if (is_edge || is_once) {
            check(epoll_ctl(set, EPOLL_CTL_MOD, sock, &wanted) == 0);
        }
        both += epoll_wait(set, &event, 1, 1000) == 1 && event.events == (EPOLLIN | EPOLLOUT);
        if (is_fresh) {
            close(set);
            set = -1;
        }
    }
    if (is_edge && !is_once) {
        /* One more byte is one more edge, and writable still holds. */
        for (int i = 0; i < TIMES; i++) {
            ask('s', 1);
            both += epoll_wait(set, &event, 1, 1000) == 1 && event.events == (EPOLLIN | EPOLLOUT);
        }
    }
    check(receive_pattern(sock, &theirs, is_edge && !is_once ? TIMES + 1 : 1) > 0);
    printf("{\"both\": %d}\n", both);
    finish();
}

/* What recvmsg says of the rest, with some room for control data; -1: nothing. */
static int told(size_t n, size_t space)
{
    char bytes[1000];
    union {
        char room[64];
        struct cmsghdr first;
    } control;
    struct iovec vector = {bytes, n};
    struct msghdr message = {.msg_iov = &vector, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = space};
    struct cmsghdr *at;
    int rest = -1;

    check(recvmsg(sock, &message, 0) == (ssize_t)n);
    check(is_pattern(bytes, theirs, n));
    theirs += n;
    at = CMSG_FIRSTHDR(&message);
    if (at && at->cmsg_level == IPPROTO_TCP && at->cmsg_type == 36 && at->cmsg_len == CMSG_LEN(sizeof rest)) {
        memcpy(&rest, CMSG_DATA(at), sizeof rest);
    }
    printf("%d, %zu, %d, ", message.msg_flags, (size_t)message.msg_controllen, rest);
    return rest;
}

static void unread(void)
{
    int on = 1;

    check(setsockopt(sock, IPPROTO_TCP, 36, &on, sizeof on) == 0);
    ask('s', 3000);
    printf("{\"seen\": [");
    told(1000, 64);
    told(500, 24);
    told(500, 20);
    told(500, 8);
    told(500, 64);
    ping(30);
    ask('s', 10);
    ask('c', 0);
    nap_us(20000);
    told(5, 64);
    told(5, 64);
    printf("0]}\n");
    fflush(stdout);
    exit(0);
}

static void queued(void)
{
    int left = -1;

    ping(30);
    send_pattern(sock, &ours, 3000);
    /* The other end's kernel acknowledges what its program has not read. */
    for (int i = 0; i < 500 && left != 0; i++) {
        nap_us(10000);
        check(ioctl(sock, TIOCOUTQ, &left) == 0);
    }
    check(ask('r', 3000).n == 3000);
    printf("{\"left\": %d}\n", left);
    fflush(stdout);
    exit(0);
}

static void waits(void)
{
    struct pollfd entry = {sock, POLLIN, 0};
    struct timeval limit = {0, 50000}, left = limit;
    struct timespec brief = {0, 50000000};
    struct epoll_event event = {EPOLLIN, {.u64 = 7}};
    int set = epoll_create1(EPOLL_CLOEXEC);
    fd_set readable;
    char byte;

    FD_ZERO(&readable);
    FD_SET(sock, &readable);
    check(epoll_ctl(set, EPOLL_CTL_ADD, sock, &event) == 0);
    printf("{\"seen\": [%d", poll(&entry, 1, 50));
    printf(", %d", ppoll(&entry, 1, &brief, NULL));
    printf(", %d", select(sock + 1, &readable, NULL, NULL, &left));
    printf(", %d", epoll_wait(set, &event, 1, 50));
    check(setsockopt(sock, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit) == 0);
    printf(", %ld]}\n", result(recv(sock, &byte, 1, 0)));
    limit.tv_usec = 0;
    check(setsockopt(sock, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit) == 0);
    finish();
}

/* A message whose last page cannot be read at first: what its reader has by then. */
static char *last_page;
static char looks = 'p';
static volatile long seen_early = -1;

static void on_fault(int number)
{
    (void)number;
    seen_early = ask(looks, 0).n;
    check(mprotect(last_page, PAGE, PROT_READ | PROT_WRITE) == 0);
}

static void early(long size)
{
    struct sigaction action = {.sa_handler = on_fault};
    long room = (size + PAGE - 1) / PAGE * PAGE;
    char *map = mmap(NULL, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    check(map != MAP_FAILED);
    fill(map, ours, size);
    last_page = map + room - PAGE;
    check(mprotect(last_page, PAGE, PROT_NONE) == 0 && sigaction(SIGSEGV, &action, NULL) == 0);
    check(send(sock, map, size, MSG_NOSIGNAL) == size);
    ours += size;
    check(ask('r', size).n == size);
}

/* How many of the messages one receive got whole. */
static void whole(long least, long most)
{
    static char room[65536];
    int count = 0;

    ping(40);
    for (int i = 0; i < 10 * TIMES; i++) {
        long size = least + (most - least) * i / (10 * TIMES - 1), got = 0;

        tell('s', size);
        /* Awake: it looks until something is there. */
        while ((got = recv(sock, room, sizeof room, MSG_DONTWAIT)) < 0 && errno == EAGAIN) {
        }
        check(got > 0 && is_pattern(room, theirs, got));
        count += got == size;
        theirs += got;
        check(receive_pattern(sock, &theirs, size - got) == size - got);
        answered();
    }
    early(most);
    printf("{\"whole\": %d, \"early\": %ld}\n", count, seen_early);
    finish();
}

int main(int count, char **words)
{
    check(count > 1);
    connect_to_child();
    alarm(LIMIT_S);
    if (!strcmp(words[1], "limits")) {
        limits();
    }
    if (!strcmp(words[1], "unread")) {
        unread();
    }
    if (!strcmp(words[1], "queued")) {
        queued();
    }
    if (!strcmp(words[1], "waits")) {
        waits();
        return 0;
    }
    check(count > 2);
    if (!strcmp(words[1], "long")) {
        ping(40);
        looks = 'u';
        early(atol(words[2]));
        printf("{\"early\": %ld}\n", seen_early);
        finish();
        return 0;
    }
    if (!strcmp(words[1], "whole")) {
        check(count > 3);
        whole(atol(words[2]), atol(words[3]));
        return 0;
    }
    events(words[2]);
    return 0;
}
