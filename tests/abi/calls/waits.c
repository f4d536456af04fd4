/* Waits: times, interruptions, cancellation. */
#include "calls.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <unistd.h>

/* A thread blocked in a call is cancelled in it. */
static struct { const char *call; int fd; } waiting;

static void *wait_for_ever(void *unused) {
    char b[8];
    struct iovec v = {b, sizeof b};
    struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1};
    struct pollfd p = {.fd = waiting.fd, .events = POLLIN};
    fd_set set;
    FD_ZERO(&set);
    FD_SET(waiting.fd, &set);
    struct epoll_event ev = {.events = EPOLLIN};
    int ep = epoll_create1(0);
    epoll_ctl(ep, EPOLL_CTL_ADD, waiting.fd, &ev);
    const char *c = waiting.call;
    (void)unused;
    if (!strcmp(c, "read")) read(waiting.fd, b, 1);
    else if (!strcmp(c, "readv")) readv(waiting.fd, &v, 1);
    else if (!strcmp(c, "recv")) recv(waiting.fd, b, 1, 0);
    else if (!strcmp(c, "recvfrom")) recvfrom(waiting.fd, b, 1, 0, 0, 0);
    else if (!strcmp(c, "recvmsg")) recvmsg(waiting.fd, &m, 0);
    else if (!strcmp(c, "poll")) poll(&p, 1, -1);
    else if (!strcmp(c, "ppoll")) ppoll(&p, 1, 0, 0);
    else if (!strcmp(c, "select")) select(waiting.fd + 1, &set, 0, 0, 0);
    else if (!strcmp(c, "pselect")) pselect(waiting.fd + 1, &set, 0, 0, 0, 0);
    else if (!strcmp(c, "epoll_wait")) epoll_wait(ep, &ev, 1, -1);
    else if (!strcmp(c, "epoll_pwait")) epoll_pwait(ep, &ev, 1, -1, 0);
    else if (!strcmp(c, "write")) for (;;) write(waiting.fd, calloc(1, 65536), 65536);
    else die("which call");
    return 0;
}

int cancelled(const char *call, const char *kind) {
    int s[2];
    char c;
    pair(kind, s);
    waiting.call = call;
    waiting.fd = s[0];
    pthread_t t;
    void *result;
    for (int round = 0; round < 3; round++) {
        pthread_create(&t, 0, wait_for_ever, 0);
        usleep(30000);
        pthread_cancel(t);
        pthread_join(t, &result);
        printf("%s\n", result == PTHREAD_CANCELED ? "cancelled" : "returned");
        if (!strcmp(call, "write")) break;
        /* The connection is as usable as before. */
        if (write(s[1], "x", 1) != 1 || read(s[0], &c, 1) != 1) die("after");
        if (write(s[0], "x", 1) != 1 || read(s[1], &c, 1) != 1) die("back");
    }
    return 0;
}

/* When a call is interrupted and when it goes on. */
static void noop(int n) { (void)n; }

static void *answers(void *fd) {
    usleep(150000);
    write(*(int *)fd, "x", 1);
    return 0;
}

int interrupts(const char *kind) {
    for (int restart = 0; restart < 2; restart++)
        for (int timeout = 0; timeout < 2; timeout++)
            for (int call = 0; call < 5; call++) {
                int s[2];
                char c;
                pair(kind, s);
                struct sigaction a = {.sa_handler = noop, .sa_flags = restart ? SA_RESTART : 0};
                MUST(sigaction(SIGALRM, &a, 0));
                struct timeval tv = {5, 0};
                if (timeout) setsockopt(s[0], SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof tv);
                pthread_t t;
                sigset_t block;
                sigfillset(&block);
                pthread_sigmask(SIG_BLOCK, &block, 0);
                pthread_create(&t, 0, answers, &s[1]);
                pthread_sigmask(SIG_UNBLOCK, &block, 0);
                struct itimerval it = {{0, 0}, {0, 50000}};
                setitimer(ITIMER_REAL, &it, 0);
                struct pollfd p = {.fd = s[0], .events = POLLIN};
                fd_set set;
                FD_ZERO(&set);
                FD_SET(s[0], &set);
                struct epoll_event ev = {.events = EPOLLIN};
                int ep = epoll_create1(0);
                epoll_ctl(ep, EPOLL_CTL_ADD, s[0], &ev);
                long r = call == 0 ? read(s[0], &c, 1) : call == 1 ? recv(s[0], &c, 1, MSG_WAITALL)
                       : call == 2 ? poll(&p, 1, 5000) : call == 3 ? select(s[0] + 1, &set, 0, 0, 0)
                       : epoll_wait(ep, &ev, 1, 5000);
                int e = errno;
                pthread_join(t, 0);
                errno = e;
                printf("restart %d timeout %d call %d ", restart, timeout, call);
                say("got", r);
                close(s[0]), close(s[1]), close(ep);
            }
    return 0;
}

/* Linux writes the time that is left. */
int times(const char *kind) {
    int s[2];
    pair(kind, s);
    fd_set set;
    struct timeval tv = {0, 20000};
    FD_ZERO(&set);
    FD_SET(s[0], &set);
    say("select", select(s[0] + 1, &set, 0, 0, &tv));
    printf("left %d, in set %d\n", tv.tv_sec != 0 || tv.tv_usec != 0, !!FD_ISSET(s[0], &set));
    write(s[1], "x", 1);
    tv = (struct timeval){100, 0};
    FD_SET(s[0], &set);
    say("select", select(s[0] + 1, &set, 0, 0, &tv));
    printf("left %d, in set %d\n", tv.tv_sec >= 99 && tv.tv_sec <= 100, !!FD_ISSET(s[0], &set));
    tv = (struct timeval){0, 3000000};
    say("select", select(s[0] + 1, &set, 0, 0, &tv));
    printf("left %d\n", tv.tv_sec == 2 || tv.tv_sec == 3);
    struct timespec ts = {7, 5};
    say("pselect", pselect(s[0] + 1, &set, 0, 0, &ts, 0));
    printf("untouched %d\n", ts.tv_sec == 7 && ts.tv_nsec == 5);
    struct pollfd p = {.fd = s[0], .events = POLLIN | POLLOUT};
    say("ppoll", ppoll(&p, 1, &ts, 0));
    printf("untouched %d revents %x\n", ts.tv_sec == 7 && ts.tv_nsec == 5, p.revents);
    char c;
    read(s[0], &c, 1);
    p.events = POLLIN;
    say("poll", poll(&p, 1, 10));
    printf("revents %x\n", p.revents);
    return 0;
}
