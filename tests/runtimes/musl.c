/* Two processes that talk over a TCP connection, linked with musl. Padding of message headers is rubbish, as musl allows. */
#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define ROUNDS 300
#define LEN 100

static void must(int fine, const char *what)
{
    if (!fine) {
        perror(what);
        exit(1);
    }
}

static void message(struct msghdr *m, struct iovec *iov, char *buf)
{
    memset(m, 0xa5, sizeof *m);
    m->msg_name = NULL;
    m->msg_namelen = 0;
    m->msg_iov = iov;
    m->msg_iovlen = 1;
    m->msg_control = NULL;
    m->msg_controllen = 0;
    m->msg_flags = 0;
    iov->iov_base = buf;
    iov->iov_len = LEN;
}

static void talk(int s)
{
    char buf[LEN] = "hello";
    struct msghdr m;
    struct iovec iov;
    for (int i = 0; i < ROUNDS; i++) {
        message(&m, &iov, buf);
        must(sendmsg(s, &m, 0) == LEN, "sendmsg");
        message(&m, &iov, buf);
        must(recvmsg(s, &m, MSG_WAITALL) == LEN, "recvmsg");
    }
}

static void *echo(void *listener)
{
    char buf[LEN];
    int s = accept(*(int *)listener, NULL, NULL);
    int set = epoll_create1(0);
    struct epoll_event event = { .events = EPOLLIN };
    must(s >= 0 && epoll_ctl(set, EPOLL_CTL_ADD, s, &event) == 0, "accept");
    for (;;) {
        must(epoll_wait(set, &event, 1, 10000) == 1, "epoll_wait");
        ssize_t n = read(s, buf, sizeof buf);
        if (n <= 0)
            break;
        must(write(s, buf, n) == n, "write");
    }
    return NULL;
}

int main(void)
{
    struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t len = sizeof at;
    pthread_t thread;
    int status, listener = socket(AF_INET, SOCK_STREAM, 0);
    alarm(20);
    must(bind(listener, (void *)&at, len) == 0 && listen(listener, 5) == 0, "listen");
    must(getsockname(listener, (void *)&at, &len) == 0, "getsockname");
    must(pthread_create(&thread, NULL, echo, &listener) == 0, "pthread_create");
    pid_t child = fork();
    must(child >= 0, "fork");
    if (child == 0) {
        int s = socket(AF_INET, SOCK_STREAM, 0), t = dup(s);
        must(connect(t, (void *)&at, len) == 0, "connect");
        close(s);
        talk(t);
        close(t);
        execl("/bin/echo", "echo", "child", "talked", NULL);
        _exit(1);
    }
    must(waitpid(child, &status, 0) == child && status == 0, "child");
    pthread_join(thread, NULL);
    must(system("exit 7") == 7 << 8, "system");
    return puts("fine") < 0;
}
