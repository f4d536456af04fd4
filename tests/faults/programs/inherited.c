/* What accepted connections have of their listener: the server sets an option there, and sees what it does on a connection
 * that has exchanged enough for a lane.
 *
 * usage: inherited OPTION; prints what was seen
 */
#include "ends.h"

#include <linux/filter.h>

#ifndef TCP_INQ
#define TCP_INQ 36
#endif

static const char *option;
static int is_far; /* the option is set by a child that has the listener, too */

static int is(const char *name)
{
    return strcmp(option, name) == 0;
}

static void set(int fd, int level, int name, int value)
{
    check(setsockopt(fd, level, name, &value, sizeof value) == 0);
}

static void set_option(int hear)
{
    struct linger linger = {1, 0};
    struct timeval limit = {0, 100000};
    struct sock_filter all[] = {BPF_STMT(BPF_RET | BPF_K, 0xffffffff)};
    struct sock_fprog filter = {1, all};

    if (is("lowat")) {
        set(hear, SOL_SOCKET, SO_RCVLOWAT, 500);
    } else if (is("inline")) {
        set(hear, SOL_SOCKET, SO_OOBINLINE, 1);
    } else if (is("stamp")) {
        set(hear, SOL_SOCKET, SO_TIMESTAMP, 1);
    } else if (is("inq")) {
        set(hear, IPPROTO_TCP, TCP_INQ, 1);
    } else if (is("zerocopy")) {
        set(hear, SOL_SOCKET, SO_ZEROCOPY, 1);
    } else if (is("filter")) {
        check(setsockopt(hear, SOL_SOCKET, SO_ATTACH_FILTER, &filter, sizeof filter) == 0);
    } else if (is("peek")) {
        set(hear, SOL_SOCKET, SO_PEEK_OFF, 0);
    } else if (is("linger")) {
        check(setsockopt(hear, SOL_SOCKET, SO_LINGER, &linger, sizeof linger) == 0);
    } else if (is("timeout")) {
        check(setsockopt(hear, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit) == 0);
    } else {
        check(is("none"));
    }
}

static int readable(void)
{
    struct pollfd entry = {sock, POLLIN, 0};

    nap_us(50000);
    return poll(&entry, 1, 0);
}

/* The child sends n bytes of one value, urgent or not. */
static void hear_from_child(int line, char what)
{
    char byte;

    check(send(line, &what, 1, 0) == 1 && recv(line, &byte, 1, 0) == 1);
}

static void child_obeys(int fd, int from)
{
    char what, text[600] = {0};

    while (recv(from, &what, 1, 0) == 1) {
        long n = what == 'h' ? 300 : 1;

        if (what == 'e') {
            n = recv(fd, text, 1, 0); /* the end: 0 or an error */
            what = n < 0 ? 'r' : 'f';
        } else if (what == 'w') {
            for (int i = 0; i < 50; i++) {
                check(recv(fd, text, 1, 0) == 1 && send(fd, text, 1, 0) == 1);
            }
        } else {
            check(send(fd, text, n, what == 'u' ? MSG_OOB : 0) == n);
        }
        check(send(from, &what, 1, 0) == 1);
    }
    exit(0);
}

int main(int argc, char **argv)
{
    struct sockaddr_in address;
    int hear = loopback_listener(&address), lines[2], one = 1, seen[6] = {0}, status;
    char text[1000], room[200], byte = 0;
    struct iovec piece = {text, sizeof text};
    struct msghdr message = {.msg_iov = &piece, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};

    check(argc >= 2);
    option = argv[1];
    is_far = argc > 2 && strcmp(argv[2], "far") == 0;
    alarm(LIMIT_S);
    check(socketpair(AF_UNIX, SOCK_STREAM, 0, lines) == 0);
    child = fork();
    check(child >= 0);
    if (child == 0) {
        int fd = socket(AF_INET, SOCK_STREAM, 0);

        alarm(LIMIT_S);
        close(lines[0]);
        check(recv(lines[1], &byte, 1, 0) == 1); /* the option is set */
        check(connect(fd, (struct sockaddr *)&address, sizeof address) == 0);
        close(hear);
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        child_obeys(fd, lines[1]);
    }
    close(lines[1]);
    if (is_far) {
        pid_t other = fork();

        if (other == 0) {
            set_option(hear);
            _exit(0);
        }
        check(waitpid(other, &status, 0) == other && status == 0);
    } else {
        set_option(hear);
    }
    check(send(lines[0], "g", 1, 0) == 1);
    sock = accept(hear, NULL, NULL);
    check(sock >= 0);
    setsockopt(sock, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    check(send(lines[0], "w", 1, 0) == 1);
    for (int i = 0; i < 50; i++) {
        check(send(sock, "x", 1, 0) == 1);
        if (is("lowat")) {
            while (recv(sock, text, 1, MSG_DONTWAIT) != 1) {
                nap_us(50);
            }
        } else {
            check(recv(sock, text, 1, 0) == 1);
        }
    }
    check(recv(lines[0], &byte, 1, 0) == 1);
    if (is("lowat")) {
        hear_from_child(lines[0], 'h');
        seen[0] = readable();
        hear_from_child(lines[0], 'h');
        seen[1] = readable();
        seen[2] = recv(sock, text, sizeof text, MSG_DONTWAIT);
    } else if (is("inline")) {
        hear_from_child(lines[0], 'b');
        hear_from_child(lines[0], 'u');
        nap_us(50000);
        seen[0] = recv(sock, text, sizeof text, MSG_DONTWAIT);
        seen[1] = recv(sock, text, sizeof text, MSG_DONTWAIT);
    } else if (is("zerocopy")) {
        seen[0] = send(sock, text, sizeof text, MSG_ZEROCOPY);
    } else if (is("peek")) {
        hear_from_child(lines[0], 'h');
        nap_us(50000);
        seen[0] = recv(sock, text, 200, MSG_PEEK);
        seen[1] = recv(sock, text, 200, MSG_PEEK);
        seen[2] = recv(sock, text, sizeof text, 0);
    } else if (is("timeout")) {
        seen[0] = recv(sock, text, 1, 0);
        seen[1] = errno;
    } else {
        hear_from_child(lines[0], 'h');
        nap_us(50000);
        seen[0] = recvmsg(sock, &message, 0);
        seen[1] = message.msg_controllen != 0;
    }
    check(send(lines[0], "e", 1, 0) == 1);
    close(sock);
    check(recv(lines[0], &byte, 1, 0) == 1);
    printf("{\"seen\": [%d, %d, %d], \"end\": \"%c\"}\n", seen[0], seen[1], seen[2], byte);
    fflush(stdout);
    close(lines[0]);
    check(waitpid(child, &status, 0) == child && status == 0);
    return 0;
}
