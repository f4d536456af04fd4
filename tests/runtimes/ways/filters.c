/* A server that confines itself to the system calls that it makes itself from then on: any other call,
 * by whomever, ends it.
 *
 *   filters PORT WHEN HOW STYLE
 *
 * WHEN: start (before its first socket), young (with a new connection), late (after a hundred messages),
 * bulk (in the middle of a megabyte). HOW: prctl, seccomp, tsync, libseccomp. STYLE: how it waits and
 * moves bytes. It echoes one connection and ends; fork: from its filter on in a child that has it, too.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#define LATE_CALLS 100
#define BULK_BYTES (1 << 20)
#define CHUNK 65536
#define MOST 40

static const char *when, *how, *style;
static int set = -1;

static void must(int ok, const char *what)
{
    if (!ok) {
        perror(what);
        _exit(3);
    }
}

static int is(const char *one, const char *other) { return strcmp(one, other) == 0; }

/* ---- the filter ---- */

static long allowed[MOST];
static int count;

static void allow(long number) { allowed[count++] = number; }

static void choose(void)
{
    if (is(style, "vectors")) {
        allow(SYS_readv), allow(SYS_writev);
    } else if (is(style, "messages")) {
        allow(SYS_recvmsg), allow(SYS_sendmsg);
    } else if (is(style, "plain")) {
        allow(SYS_read), allow(SYS_write);
    } else {
        allow(SYS_recvfrom), allow(SYS_sendto);
    }
    if (is(style, "poll")) {
        allow(SYS_poll);
    } else if (is(style, "select")) {
        allow(SYS_pselect6);
    } else if (is(style, "epoll")) {
        allow(SYS_epoll_wait);
    } else if (is(style, "signals")) {
        allow(SYS_rt_sigreturn), allow(SYS_restart_syscall);
    } else if (is(style, "fork")) {
        allow(SYS_clone), allow(SYS_set_robust_list), allow(SYS_wait4);
    }
    if (is(when, "start")) {
        allow(SYS_socket), allow(SYS_setsockopt), allow(SYS_bind), allow(SYS_listen), allow(SYS_accept);
        allow(SYS_epoll_create1), allow(SYS_epoll_ctl);
        if (is(style, "signals")) {
            allow(SYS_setitimer);
        }
    }
    allow(SYS_close), allow(SYS_exit_group);
}

static void by_libseccomp(void)
{
    void *lib = dlopen("libseccomp.so.2", RTLD_NOW);
    must(lib != NULL, "libseccomp.so.2");
    void *(*init)(uint32_t) = (void *(*)(uint32_t))dlsym(lib, "seccomp_init");
    int (*rule)(void *, uint32_t, int, unsigned, ...) =
        (int (*)(void *, uint32_t, int, unsigned, ...))dlsym(lib, "seccomp_rule_add");
    int (*load)(void *) = (int (*)(void *))dlsym(lib, "seccomp_load");
    void *context = init(SECCOMP_RET_KILL_PROCESS);

    for (int i = 0; i < count; i++) {
        must(rule(context, SECCOMP_RET_ALLOW, allowed[i], 0) == 0, "seccomp_rule_add");
    }
    must(load(context) == 0, "seccomp_load");
}

static void confine(void)
{
    struct sock_filter code[MOST + 3];
    unsigned short n = 0;

    choose();
    if (is(how, "libseccomp")) {
        return by_libseccomp();
    }
    code[n++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
    for (int i = 0; i < count; i++) {
        code[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, allowed[i], count - i, 0);
    }
    code[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS);
    code[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    struct sock_fprog program = {n, code};

    must(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0, "no new privileges");
    if (is(how, "prctl")) {
        must(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0, "prctl");
    } else {
        unsigned flags = is(how, "tsync") ? SECCOMP_FILTER_FLAG_TSYNC : 0;

        must(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &program) == 0, "seccomp");
    }
}

/* ---- the echo ---- */

static ssize_t take(int fd, char *to, size_t n)
{
    struct iovec parts[2] = {{to, n / 2}, {to + n / 2, n - n / 2}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};

    if (is(style, "vectors")) {
        return readv(fd, parts, 2);
    }
    if (is(style, "messages")) {
        return recvmsg(fd, &message, 0);
    }
    if (is(style, "plain")) {
        return read(fd, to, n);
    }
    if (is(style, "poll")) {
        struct pollfd entry = {.fd = fd, .events = POLLIN};

        must(poll(&entry, 1, -1) == 1, "poll");
    } else if (is(style, "select")) {
        fd_set wanted;

        FD_ZERO(&wanted);
        FD_SET(fd, &wanted);
        must(select(fd + 1, &wanted, NULL, NULL, NULL) == 1, "select");
    } else if (is(style, "epoll")) {
        struct epoll_event event;

        must(epoll_wait(set, &event, 1, -1) == 1, "epoll_wait");
    }
    return recv(fd, to, n, 0);
}

static ssize_t give(int fd, char *from, size_t n)
{
    struct iovec parts[2] = {{from, n / 2}, {from + n / 2, n - n / 2}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};

    if (is(style, "vectors")) {
        return writev(fd, parts, 2);
    }
    if (is(style, "messages")) {
        return sendmsg(fd, &message, 0);
    }
    return is(style, "plain") ? write(fd, from, n) : send(fd, from, n, 0);
}

static void go_on_in_a_child(int fd);

/* Echoes to the end, and enters the sandbox when it is time. */
static void echo(int fd)
{
    static char room[CHUNK];
    static size_t total;
    static int calls, confined;

    confined = confined || is(when, "start");
    for (;;) {
        if (!confined && (is(when, "young") || (is(when, "late") && calls >= LATE_CALLS)
                          || (is(when, "bulk") && total >= BULK_BYTES))) {
            confine();
            confined = 1;
            if (is(style, "fork")) {
                return go_on_in_a_child(fd);
            }
        }
        ssize_t n = take(fd, room, sizeof room);

        if (n < 0 && errno == EINTR) {
            continue;
        }
        must(n >= 0, "receive");
        if (n == 0) {
            break;
        }
        for (ssize_t at = 0; at < n;) {
            ssize_t sent = give(fd, room + at, n - at);

            if (sent < 0 && errno == EINTR) {
                continue;
            }
            must(sent > 0, "send");
            at += sent;
        }
        total += n, calls++;
    }
    must(close(fd) == 0, "close");
}

/* Confined already; the child echoes the rest. */
static void go_on_in_a_child(int fd)
{
    int status = 0;
    pid_t child = fork();

    must(child >= 0, "fork");
    if (child == 0) {
        echo(fd);
        _exit(0);
    }
    must(close(fd) == 0, "close");
    must(waitpid(child, &status, 0) == child && status == 0, "the child's end");
}

static void on_timer(int number) { (void)number; }

int main(int argc, char **argv)
{
    struct sockaddr_in address = {.sin_family = AF_INET};
    int one = 1;

    must(argc == 5, "filters PORT WHEN HOW STYLE");
    address.sin_port = htons(atoi(argv[1]));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    when = argv[2], how = argv[3], style = argv[4];
    alarm(80);
    if (is(style, "signals")) {
        struct sigaction action = {.sa_handler = on_timer, .sa_flags = SA_RESTART};

        sigaction(SIGUSR1, &action, NULL);
        sigaction(SIGVTALRM, &action, NULL);
    }
    if (is(when, "start")) {
        confine();
    }
    int listener = socket(AF_INET, SOCK_STREAM, 0);

    must(setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) == 0, "SO_REUSEADDR");
    must(bind(listener, (struct sockaddr *)&address, sizeof address) == 0, "bind");
    must(listen(listener, 8) == 0, "listen");
    int fd = accept(listener, NULL, NULL);

    must(fd >= 0, "accept");
    if (is(style, "epoll")) {
        struct epoll_event event = {.events = EPOLLIN};

        set = epoll_create1(0);
        must(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0, "epoll_ctl");
    }
    if (is(style, "signals")) {
        struct itimerval often = {{0, 1000}, {0, 1000}};

        must(setitimer(ITIMER_VIRTUAL, &often, NULL) == 0, "setitimer");
    }
    if (is(style, "fork") && is(when, "start")) {
        go_on_in_a_child(fd);
    } else {
        echo(fd);
    }
    exit(0);
}
