/* Results, error numbers and data: calls that move bytes. */
#include "calls.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

/* Results and errno of calls that fail, and of some that do not. */
int errors(void) {
    char b[16];
    struct iovec v = {b, sizeof b};
    static struct iovec vectors[5000];
    struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1};
    struct pollfd p = {.fd = 900, .events = POLLIN};
    struct epoll_event ev = {.events = EPOLLIN};
    int bad[] = {-1, 900, 1 << 22, INT32_MIN, INT32_MAX};
    for (unsigned i = 0; i < sizeof bad / sizeof *bad; i++) {
        int f = bad[i];
        say("read", read(f, b, 1));
        say("readv", readv(f, &v, 1));
        say("recv", recv(f, b, 1, 0));
        say("recvfrom", recvfrom(f, b, 1, 0, 0, 0));
        say("recvmsg", recvmsg(f, &m, 0));
        say("write", write(f, b, 1));
        say("writev", writev(f, &v, 1));
        say("send", send(f, b, 1, 0));
        say("sendto", sendto(f, b, 1, 0, 0, 0));
        say("sendmsg", sendmsg(f, &m, 0));
        say("sendfile", sendfile(f, 0, 0, 1));
        say("close", close(f));
        say("dup", dup(f));
        say("dup2", dup2(f, 5));
        say("dup2 onto", dup2(1, f));
        say("dup3", dup3(f, 5, O_CLOEXEC));
        say("fcntl", fcntl(f, F_GETFD));
        say("dupfd", fcntl(f, F_DUPFD, 3));
        say("ioctl", ioctl(f, FIONREAD, b));
        say("shutdown", shutdown(f, SHUT_WR));
        say("accept", accept(f, 0, 0));
        say("accept4", accept4(f, 0, 0, 0));
        say("listen", listen(f, 1));
        say("connect", connect(f, 0, 0));
        say("setsockopt", setsockopt(f, SOL_SOCKET, SO_KEEPALIVE, b, 4));
        say("epoll_ctl", epoll_ctl(f, EPOLL_CTL_ADD, 0, &ev));
        say("epoll_wait", epoll_wait(f, &ev, 1, 0));
        say("sockatmark", sockatmark(f));
        say("isfdtype", isfdtype(f, S_IFSOCK));
    }
    say("poll", poll(&p, 1, 0));
    printf("revents %x\n", p.revents);
    say("poll null", poll(0, 0, 0));
    struct timespec wrong = {0, 2000000000};
    say("ppoll time", ppoll(&p, 1, &wrong, 0));
    say("pselect time", pselect(0, 0, 0, 0, &wrong, 0));
    struct timeval negative = {-1, 0};
    say("select time", select(0, 0, 0, 0, &negative));
    say("select range", select(-1, 0, 0, 0, 0));
    say("epoll size", epoll_create(0));
    say("epoll flags", epoll_create1(77));
    say("socket", socket(999, SOCK_STREAM, 0));
    say("pipe2", pipe2((int *)b, 77));
    say("open", open("/nonexistent/x", O_RDONLY));
    say("openat", openat(AT_FDCWD, "/nonexistent/x", O_RDONLY));
    say("close_range order", close_range(20, 10, 0));
    say("close_range flags", close_range(900, 901, 77));
    say("dup3 same", dup3(1, 1, 0));
    say("dup3 flags", dup3(1, 5, 77));
    say("sigaction", sigaction(65, 0, 0));
    struct sigaction act = {.sa_handler = SIG_IGN};
    say("sigaction kill", sigaction(SIGKILL, &act, 0));
    say("sigaction 32", sigaction(32, &act, 0));
    say("signal", (long)signal(0, SIG_IGN));
    say("signal big", (long)signal(100, SIG_IGN));
    say("sigset", (long)sigset(100, SIG_IGN));
    say("siginterrupt", siginterrupt(100, 1));
    say("setns", setns(-1, 0));
    say("fexecve", fexecve(-1, (char *[]){"x", 0}, environ));
    say("execve", execve("/nonexistent", (char *[]){"x", 0}, environ));
    say("execl", execl("/nonexistent", "x", (char *)0));
    say("execlp", execlp("nonexistent-program", "x", (char *)0));
    say("prctl", prctl(9999, 0, 0, 0, 0));
    say("syscall", syscall(9999));
    const char *kinds[] = {"unix", "tcp", "warm"};
    for (int k = 0; k < 3; k++) {
        int s[2];
        pair(kinds[k], s);
        MUST(fcntl(s[0], F_SETFL, O_NONBLOCK));
        printf("%s\n", kinds[k]);
        say("again read", read(s[0], b, 1));
        say("again recv", recv(s[0], b, 1, 0));
        say("again recvmsg", recvmsg(s[0], &m, 0));
        say("peek", recv(s[0], b, 1, MSG_PEEK | MSG_DONTWAIT));
        say("vector", readv(s[0], vectors, -1));
        say("vector long", writev(s[0], vectors, 5000));
        say("vector none", writev(s[0], &v, 0));
        say("null recvmsg", recvmsg(s[0], 0, 0));
        say("null sendmsg", sendmsg(s[0], 0, 0));
        say("empty", write(s[0], b, 0));
        say("one", write(s[0], "x", 1));
        socklen_t len = 99;
        struct sockaddr_storage from;
        say("from", recvfrom(s[1], b, sizeof b, 0, (void *)&from, &len));
        printf("address length %d\n", k ? (int)len : -1);
        say("shut", shutdown(s[0], SHUT_WR));
        say("shut write", send(s[0], b, 1, MSG_NOSIGNAL));
        say("end", read(s[1], b, 1));
        say("end again", recv(s[1], b, 1, 0));
        say("still", write(s[1], "yz", 2));
        struct pollfd q = {.fd = s[0], .events = POLLIN};
        say("poll", poll(&q, 1, 5000));
        say("rest", read(s[0], b, sizeof b));
        say("close", close(s[0]));
        say("close twice", close(s[0]));
        close(s[1]);
    }
    return 0;
}

/* Many messages per call. */
int many(const char *kind) {
    int s[2];
    char b[4][8];
    struct iovec v[4];
    struct mmsghdr m[4];
    memset(m, 0, sizeof m);
    for (int i = 0; i < 4; i++) {
        v[i] = (struct iovec){b[i], 2};
        m[i].msg_hdr.msg_iov = &v[i];
        m[i].msg_hdr.msg_iovlen = 1;
    }
    pair(kind, s);
    memcpy(b, "abcdefghijklmnopqrstuvwxyzabcdef", 32);
    say("sendmmsg", sendmmsg(s[0], m, 4, 0));
    for (int i = 0; i < 4; i++) printf("len %u\n", m[i].msg_len);
    say("sendmmsg none", sendmmsg(s[0], m, 0, 0));
    memset(b, 0, sizeof b);
    struct pollfd p = {.fd = s[1], .events = POLLIN};
    poll(&p, 1, 5000);
    struct timespec ts = {5, 0};
    say("recvmmsg", recvmmsg(s[1], m, 3, 0, &ts));
    for (int i = 0; i < 3; i++) printf("len %u %.2s flags %x\n", m[i].msg_len, b[i], m[i].msg_hdr.msg_flags);
    printf("time %d\n", ts.tv_sec == 4 && ts.tv_nsec > 0);
    say("wait for one", recvmmsg(s[1], m, 4, MSG_WAITFORONE, 0));
    printf("len %u %.2s\n", m[0].msg_len, b[0]);
    say("nothing", recvmmsg(s[1], m, 4, MSG_DONTWAIT, 0));
    ts = (struct timespec){0, -1};
    say("bad time", recvmmsg(s[1], m, 4, MSG_DONTWAIT, &ts));
    close(s[0]);
    say("end", recvmmsg(s[1], m, 4, 0, 0));
    say("broken", sendmmsg(s[1], m, 1, MSG_NOSIGNAL) < 0 ? -1 : 0 * (errno = 0));
    return 0;
}

/* syscall(): all six arguments, both ways of using a descriptor. */
int system_calls(const char *kind) {
    int s[2];
    char b[8];
    char *at = (char *)syscall(SYS_mmap, 0L, 4096L, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1L, 0L);
    *at = 1;
    int f = open("/proc/self/exe", O_RDONLY);
    char *file = (char *)syscall(SYS_mmap, 0L, 4096L, PROT_READ, MAP_PRIVATE, (long)f, 4096L);
    char check[1];
    pread(f, check, 1, 4096);
    printf("mapped %d\n", file[0] == check[0]);
    pair(kind, s);
    for (int i = 0; i < 60; i++) {
        if (syscall(SYS_write, s[0], "abc", 3) != 3) die("write");
        if (syscall(SYS_read, s[1], b, 3) != 3 || memcmp(b, "abc", 3)) die("read");
        if (syscall(SYS_sendto, s[1], "de", 2, 0, 0, 0) != 2) die("sendto");
        if (syscall(SYS_recvfrom, s[0], b, 2, MSG_WAITALL, 0, 0) != 2) die("recvfrom");
    }
    struct pollfd p = {.fd = s[0], .events = POLLIN};
    say("poll", syscall(SYS_poll, &p, 1, 0));
    write(s[1], "x", 1);
    say("poll", syscall(SYS_poll, &p, 1, 1000));
    struct timespec ts = {1, 0};
    say("ppoll", syscall(SYS_ppoll, &p, 1, &ts, 0, 8));
    fd_set set;
    FD_ZERO(&set);
    FD_SET(s[0], &set);
    say("pselect6", syscall(SYS_pselect6, s[0] + 1, &set, 0, 0, &ts, 0));
    long d = syscall(SYS_dup, s[0]);
    printf("dup %d\n", d > s[1]);
    say("read", syscall(SYS_read, d, b, 8));
    say("close", syscall(SYS_close, d));
    say("close", syscall(SYS_close, d));
    say("fcntl", syscall(SYS_fcntl, s[0], F_GETFD, 0));
    say("getppid", syscall(SYS_getppid) == getppid());
    say("bad", syscall(SYS_read, 900, b, 1));
    say("shutdown", syscall(SYS_shutdown, s[0], SHUT_WR));
    say("end", syscall(SYS_read, s[1], b, 1));
    return 0;
}

/* The answer to io_uring_setup. */
int io_uring(void) {
    char params[128] = {0};
    long r = syscall(SYS_io_uring_setup, 1, params);
    printf("%s\n", r >= 0 ? "made" : errno == ENOSYS ? "not here" : "refused");
    return 0;
}

/* Numbers: duplicated, replaced, passed on, opened again. */
int numbers(const char *kind) {
    int s[2], d, p[2];
    char b[64];
    pair(kind, s);
    d = dup(s[0]);
    say("dup", write(d, "1", 1));
    say("close old", close(s[0]));
    say("write", write(d, "2", 1));
    MUST(pipe(p));
    int e = fcntl(d, F_DUPFD_CLOEXEC, 50);
    printf("number %d flag %d\n", e, fcntl(e, F_GETFD));
    say("dup2", dup2(e, 60) == 60);
    say("write", write(60, "3", 1));
    say("replace", dup2(p[1], 60) == 60);
    say("to pipe", write(60, "pp", 2));
    say("from pipe", read(p[0], b, 8));
    say("dup3", dup3(d, 61, O_CLOEXEC) == 61);
    say("write", write(61, "4", 1));
    say("bad", dup2(999, 61));
    say("still", write(61, "5", 1));
    close_range(50, 61, 0);
    say("gone", write(61, "6", 1));
    say("read", recv(s[1], b, 5, MSG_WAITALL));
    printf("%.5s\n", b);
    int f = open("/dev/null", O_RDWR);
    say("null", write(f, "abc", 3));
    say("null", read(f, b, 3));
    FILE *out = fdopen(dup(d), "w");
    fprintf(out, "through stdio\n");
    say("fclose", fclose(out));
    say("read", recv(s[1], b, 14, MSG_WAITALL));
    union { char raw[CMSG_SPACE(sizeof(int))]; struct cmsghdr h; } control = {0};
    struct iovec v = {"x", 1};
    struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    struct cmsghdr *h = CMSG_FIRSTHDR(&m);
    h->cmsg_level = SOL_SOCKET, h->cmsg_type = SCM_RIGHTS, h->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(h), &d, sizeof d);
    int u[2], got;
    MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, u));
    say("pass", sendmsg(u[0], &m, 0));
    v.iov_base = b;
    m.msg_controllen = sizeof control;
    say("take", recvmsg(u[1], &m, 0));
    memcpy(&got, CMSG_DATA(CMSG_FIRSTHDR(&m)), sizeof got);
    close(d);
    say("passed", write(got, "7", 1));
    say("read", read(s[1], b, 8));
    closefrom(3);
    say("all gone", write(got, "7", 1));
    return 0;
}

/* A loop of reads that nothing of the library should slow down: how many, on what. */
int reads(long n) {
    int p[2];
    char c;
    MUST(pipe(p));
    MUST(fcntl(p[0], F_SETFL, O_NONBLOCK));
    for (long i = 0; i < n; i++)
        if (read(p[0], &c, 1) != -1) die("read");
    return 0;
}
