/* Receive calls for no bytes: what each answers with nothing there, with bytes there, at the end of the stream and after a
 * reset, and whether it waited.
 *
 * usage: none; prints the answers
 */
#include "ends.h"

#include <sys/uio.h>

#define WAIT_US 150000
#define CALLS 8

static const char *const names[CALLS] = {"recv", "recvfrom", "recvmsg", "recvmsg-none", "recvmmsg", "read", "readv", "syscall"};

static ssize_t call(int which, int flags)
{
    char byte;
    struct iovec nothing[2] = {{&byte, 0}, {NULL, 0}};
    struct msghdr message = {.msg_iov = nothing, .msg_iovlen = 2};
    struct mmsghdr messages[1] = {{.msg_hdr = {.msg_iov = nothing, .msg_iovlen = 1}, .msg_len = 9}};
    struct sockaddr_storage from;
    socklen_t len = sizeof from;

    errno = 0;
    switch (which) {
    case 0:
        return recv(sock, &byte, 0, flags);
    case 1:
        return recvfrom(sock, &byte, 0, flags, (struct sockaddr *)&from, &len);
    case 2:
        return recvmsg(sock, &message, flags);
    case 3:
        message.msg_iovlen = 0;
        return recvmsg(sock, &message, flags);
    case 4:
        return recvmmsg(sock, messages, 1, flags, NULL);
    case 5:
        return read(sock, &byte, 0);
    case 6:
        return readv(sock, nothing, 2);
    default:
        return syscall(SYS_recvfrom, sock, NULL, 0, flags, NULL, NULL);
    }
}

static int is_first = 1;

static void show(const char *when, int which, int flags)
{
    struct timespec began, now;
    ssize_t n;
    int error;
    long us;

    clock_gettime(CLOCK_MONOTONIC, &began);
    n = call(which, flags);
    error = n < 0 ? errno : 0;
    clock_gettime(CLOCK_MONOTONIC, &now);
    us = (now.tv_sec - began.tv_sec) * 1000000 + (now.tv_nsec - began.tv_nsec) / 1000;
    printf("%s\"%s %s %d\": [%d, %d, %d]", is_first ? "{" : ", ", when, names[which], flags, (int)n, error, us > WAIT_US / 2);
    is_first = 0;
}

static void *speak(void *unused)
{
    (void)unused;
    nap_us(WAIT_US);
    tell('s', 1);
    return NULL;
}

int main(void)
{
    static const int FLAGS[] = {0, MSG_PEEK, MSG_TRUNC, MSG_WAITALL, MSG_WAITALL | MSG_PEEK};
    struct timeval limit = {0, WAIT_US}, ever = {0, 0};
    pthread_t thread;

    alarm(LIMIT_S);
    connect_to_child();
    for (int i = 0; i < CALLS; i++) {
        for (size_t j = 0; j < sizeof FLAGS / sizeof *FLAGS; j++) {
            show("empty", i, FLAGS[j] | MSG_DONTWAIT);
        }
    }
    fcntl(sock, F_SETFL, O_NONBLOCK);
    for (int i = 0; i < CALLS; i++) {
        show("nonblocking", i, 0);
    }
    fcntl(sock, F_SETFL, 0);
    check(setsockopt(sock, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit) == 0);
    for (int i = 0; i < CALLS; i++) {
        show("limited", i, 0);
    }
    check(setsockopt(sock, SOL_SOCKET, SO_RCVTIMEO, &ever, sizeof ever) == 0);
    for (int i = 0; i < CALLS; i++) { /* until there is something */
        check(pthread_create(&thread, NULL, speak, NULL) == 0);
        show("waiting", i, 0);
        check(pthread_join(thread, NULL) == 0);
        answered();
        for (size_t j = 0; j < sizeof FLAGS / sizeof *FLAGS; j++) {
            show("there", i, FLAGS[j]);
        }
        check(receive_pattern(sock, &theirs, 1) == 1);
    }
    ping(10);
    ask('c', 0);
    for (int i = 0; i < CALLS; i++) {
        for (size_t j = 0; j < sizeof FLAGS / sizeof *FLAGS; j++) {
            show("end", i, FLAGS[j]);
        }
    }
    close(sock);
    dismiss();
    printf("}\n");
    return 0;
}
