/* A connection on its lane is registered with an epoll set that the library did not see made, or was before it came
 * here: every message is told. What was told is printed.
 *
 * usage: unseen HOW WAY [unread]; HOW: received, many, memory, kept, member, lent; WAY: level, edge
 */
#include "ends.h"

#include <sys/epoll.h>
#include <sys/resource.h>

#define MESSAGE 1000
#define ROUNDS 3
/* More sets than are mirrored. */
#define SETS 4100
#define WAIT_MS 3000

/* One descriptor over a Unix socket. */
static void give(int through, int fd)
{
    char byte = 'x', room[CMSG_SPACE(sizeof fd)] = {0};
    struct iovec piece = {&byte, 1};
    struct msghdr message = {.msg_iov = &piece, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
    struct cmsghdr *head = CMSG_FIRSTHDR(&message);

    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(sizeof fd);
    memcpy(CMSG_DATA(head), &fd, sizeof fd);
    check(sendmsg(through, &message, 0) == 1);
}

static int take(int through)
{
    char byte, room[CMSG_SPACE(sizeof(int))];
    struct iovec piece = {&byte, 1};
    struct msghdr message = {.msg_iov = &piece, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
    int fd;

    check(recvmsg(through, &message, MSG_CMSG_CLOEXEC) == 1 && message.msg_controllen != 0);
    memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof fd);
    return fd;
}

/* A set that another process made. */
static int received(void)
{
    int lines[2], set;
    pid_t maker;

    check(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, lines) == 0);
    maker = fork();
    check(maker >= 0);
    if (maker == 0) {
        give(lines[1], epoll_create1(EPOLL_CLOEXEC));
        _exit(0);
    }
    set = take(lines[0]);
    check(waitpid(maker, NULL, 0) == maker);
    close(lines[0]);
    close(lines[1]);
    return set;
}

/* One beyond those that are mirrored. */
static int one_too_many(void)
{
    struct rlimit limit;
    int set = -1;

    check(getrlimit(RLIMIT_NOFILE, &limit) == 0);
    if (limit.rlim_max < SETS + 200) {
        limit.rlim_max = SETS + 200;
    }
    limit.rlim_cur = limit.rlim_max;
    check(setrlimit(RLIMIT_NOFILE, &limit) == 0);
    for (int i = 0; i < SETS; i++) {
        set = epoll_create1(EPOLL_CLOEXEC);
        check(set >= 0);
    }
    return set;
}

/* One that is made when there is no memory. */
static int without_memory(void)
{
    struct rlimit before, tight = {1 << 20, RLIM_INFINITY};
    int set;

    check(getrlimit(RLIMIT_AS, &before) == 0);
    tight.rlim_max = before.rlim_max;
    check(setrlimit(RLIMIT_AS, &tight) == 0);
    set = epoll_create1(EPOLL_CLOEXEC);
    check(set >= 0);
    check(setrlimit(RLIMIT_AS, &before) == 0);
    return set;
}

/* What is told of each of some messages, and that they are right. */
static void wait_for_messages(int set, const char *how, int unread)
{
    struct epoll_event event;
    int told = 0, quiet;

    for (int i = 0; i < ROUNDS; i++) {
        if (!unread || i > 0) {
            ask('s', MESSAGE);
        }
        told += epoll_wait(set, &event, 1, WAIT_MS) == 1 && event.events & EPOLLIN && event.data.u32 == 7;
        check(receive_pattern(sock, &theirs, MESSAGE) == MESSAGE);
    }
    quiet = epoll_wait(set, &event, 1, 0) == 0;
    printf("{\"how\": \"%s\", \"told\": %d, \"quiet\": %d, \"payload\": %d}\n", how, told, quiet, ROUNDS * MESSAGE);
    fflush(stdout);
}

/* The set and what is in it are kept over exec. */
static void go_on_in_another_image(int set, char **argv)
{
    char numbers[4][16];

    for (int fds[] = {sock, set, line}, i = 0; i < 3; i++) {
        check(fcntl(fds[i], F_SETFD, 0) == 0);
        snprintf(numbers[i], sizeof numbers[i], "%d", fds[i]);
    }
    snprintf(numbers[3], sizeof numbers[3], "%d", (int)child);
    execl("/proc/self/exe", argv[0], "image", argv[1], numbers[0], numbers[1], numbers[2], numbers[3], NULL);
    check(0);
}

/* Waits on a set of somebody else's, who has the connection. */
static void wait_for_owner(int from, int to)
{
    struct epoll_event event;
    int set = take(from);

    for (char byte; recv(from, &byte, 1, 0) == 1;) {
        byte = epoll_wait(set, &event, 1, WAIT_MS) == 1 && event.data.u32 == 7;
        check(send(to, &byte, 1, 0) == 1);
    }
    _exit(0);
}

/* A set of this process is waited on by another, which gets it. */
static void lend(int set)
{
    int lines[2], told = 0;
    pid_t borrower;
    char byte = 'x';

    check(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, lines) == 0);
    borrower = fork();
    check(borrower >= 0);
    if (borrower == 0) {
        close(lines[0]);
        close(sock);
        close(set);
        wait_for_owner(lines[1], lines[1]);
    }
    close(lines[1]);
    give(lines[0], set);
    for (int i = 0; i < ROUNDS; i++) {
        check(send(lines[0], "x", 1, 0) == 1);
        nap_us(50000);
        ask('s', MESSAGE);
        check(recv(lines[0], &byte, 1, 0) == 1);
        told += byte;
        check(receive_pattern(sock, &theirs, MESSAGE) == MESSAGE);
    }
    close(lines[0]);
    check(waitpid(borrower, NULL, 0) == borrower);
    printf("{\"how\": \"lent\", \"told\": %d, \"quiet\": 1, \"payload\": %d}\n", told, ROUNDS * MESSAGE);
    fflush(stdout);
}

int main(int argc, char **argv)
{
    struct epoll_event event = {EPOLLIN, {.u32 = 7}};
    const char *how = argv[1];
    int set, unread = argc > 3 && strcmp(argv[3], "unread") == 0;

    alarm(LIMIT_S);
    if (strcmp(how, "image") == 0) { /* what was registered before, and what is now */
        sock = atoi(argv[3]);
        set = atoi(argv[4]);
        line = atoi(argv[5]);
        child = atoi(argv[6]);
        how = argv[2];
        if (strcmp(how, "kept") == 0) {
            connect_to_child();
            check(epoll_ctl(set, EPOLL_CTL_ADD, sock, &event) == 0);
        } else {
            ping(50); /* which may earn it lanes again */
        }
        wait_for_messages(set, how, 0);
        finish();
        return 0;
    }
    event.events |= strcmp(argv[2], "edge") == 0 ? EPOLLET : 0;
    if (strcmp(how, "kept") == 0) {
        sock = line = -1;
        set = epoll_create1(0);
        sock = line = open("/dev/null", O_RDONLY);
        go_on_in_another_image(set, argv);
    }
    connect_to_child();
    if (strcmp(how, "received") == 0) {
        set = received();
    } else if (strcmp(how, "many") == 0) {
        set = one_too_many();
    } else if (strcmp(how, "memory") == 0) {
        set = without_memory();
    } else {
        set = epoll_create1(0);
    }
    if (unread) {
        ask('s', MESSAGE);
    }
    check(epoll_ctl(set, EPOLL_CTL_ADD, sock, &event) == 0);
    if (strcmp(how, "member") == 0) {
        go_on_in_another_image(set, argv);
    } else if (strcmp(how, "lent") == 0) {
        lend(set);
    } else {
        wait_for_messages(set, how, unread);
    }
    finish();
    return 0;
}
