/* What only C programs do: cancel threads in calls, send from signal handlers, confine themselves,
 * vfork. Both ends are in one program, connected over loopback: the child echoes, or checks records.
 *
 *   calls cancel recv|send|poll|epoll|read     threads are cancelled in blocked calls
 *   calls alone read|write|recv|send|close     the only thread cancels itself, and calls on a young connection
 *   calls signals                              a handler sends 1000 times a second on the same socket
 *   calls seccomp strict|filter                the process may only read, write and exit from here on
 *   calls vfork                                vfork children close everything
 *
 * Prints {"fine": true} or says on standard error what was wrong.
 */
#include "base.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/single_threaded.h>
#include <sys/time.h>

static int sock, other;

static void write_all(int fd, const void *from, size_t n)
{
    const char *at = from;

    while (n) {
        ssize_t sent = send(fd, at, n, MSG_NOSIGNAL);

        if (sent < 0 && errno == EINTR) {
            continue;
        }
        check(sent > 0);
        at += sent;
        n -= sent;
    }
}

static size_t read_all(int fd, void *to, size_t n)
{
    char *at = to;
    size_t got = 0;

    while (got < n) {
        ssize_t more = recv(fd, at + got, n - got, 0);

        if (more < 0 && errno == EINTR) {
            continue;
        }
        check(more >= 0);
        if (more == 0) {
            break;
        }
        got += more;
    }
    return got;
}

/* Connects this process (`sock`) to a fork child, which runs `body` on its end. */
static pid_t connect_to_child(void (*body)(int))
{
    struct sockaddr_in address;
    int hear = loopback_listener(&address), one = 1;
    pid_t child = fork();

    check(child >= 0);
    if (child == 0) {
        alarm(50);
        int fd = socket(AF_INET, SOCK_STREAM, 0);

        check(connect(fd, (struct sockaddr *)&address, sizeof address) == 0);
        close(hear);
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        body(fd);
        exit(0);
    }
    sock = accept(hear, NULL, NULL);
    check(sock >= 0);
    close(hear);
    setsockopt(sock, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    return child;
}

static void echo(int fd)
{
    static char room[65536];
    ssize_t n;

    while ((n = recv(fd, room, sizeof room, 0)) > 0) {
        write_all(fd, room, n);
    }
    check(n == 0);
}

static void ping(int rounds)
{
    char out[100], back[100];

    for (int i = 0; i < rounds; i++) {
        memset(out, i, sizeof out);
        write_all(sock, out, sizeof out);
        check(read_all(sock, back, sizeof back) == sizeof back);
        check(memcmp(out, back, sizeof out) == 0);
    }
}

static void finish(pid_t child)
{
    int status;
    char byte;

    shutdown(sock, SHUT_WR);
    check(recv(sock, &byte, 1, 0) == 0);
    close(sock);
    check(waitpid(child, &status, 0) == child && status == 0);
}

/* ---- cancel ---- */

static const char *call;

static void *blocked(void *unused)
{
    static char room[1 << 20];
    struct pollfd entry = {sock, POLLIN, 0};
    struct epoll_event event = {.events = EPOLLIN};
    int set = strcmp(call, "epoll") == 0 ? other : -1;

    if (strcmp(call, "recv") == 0) {
        recv(sock, room, 1, 0);
    } else if (strcmp(call, "read") == 0) {
        check(read(sock, room, 1) < 0);
    } else if (strcmp(call, "poll") == 0) {
        poll(&entry, 1, -1);
    } else if (strcmp(call, "epoll") == 0) {
        epoll_wait(set, &event, 1, -1);
    } else {
        for (;;) {
            send(sock, room, sizeof room, 0);
        }
    }
    return unused;
}

/* The peer of a cancelled sender: counts what comes in the end. */
static void drain(int fd)
{
    static char room[65536];

    char warm[100];
    for (int i = 0; i < 50; i++) {
        check(read_all(fd, warm, sizeof warm) == sizeof warm);
        write_all(fd, warm, sizeof warm);
    }
    for (;;) {
        struct pollfd entry = {fd, POLLIN, 0};

        nap_us(400000);
        while (poll(&entry, 1, 100) > 0) {
            ssize_t n = recv(fd, room, sizeof room, 0);

            if (n == 0) {
                return;
            }
            check(n > 0 || errno == ECONNRESET);
            if (n < 0) {
                return;
            }
        }
    }
}

static void cancel(void)
{
    int is_send = strcmp(call, "send") == 0;
    pid_t child = connect_to_child(is_send ? drain : echo);
    struct epoll_event event = {.events = EPOLLIN};

    ping(50);
    other = epoll_create1(0);
    check(epoll_ctl(other, EPOLL_CTL_ADD, sock, &event) == 0);
    for (int i = 0; i < 20; i++) {
        pthread_t thread;
        void *result;

        check(pthread_create(&thread, NULL, blocked, NULL) == 0);
        nap_us(is_send ? 100000 : 20000);
        check(pthread_cancel(thread) == 0);
        check(pthread_join(thread, &result) == 0);
        check(result == PTHREAD_CANCELED);
        if (!is_send) {
            ping(3);
        }
    }
    if (is_send) {
        int status;

        close(sock);
        check(waitpid(child, &status, 0) == child && status == 0);
    } else {
        ping(1000);
        finish(child);
    }
}

/* ---- alone ---- */

static void cancelled(void *unused)
{
    (void)unused;
    puts("{\"fine\": true}");
    fflush(stdout);
    _exit(0);
}

/* A process with a single thread makes its calls without looking for a cancellation, unless that was its own doing. */
static void alone(void)
{
    static char room[100];

    connect_to_child(echo);
    write_all(sock, room, sizeof room);
    /* A program that looks at the word itself has a copy of it, which pthread_cancel leaves alone. */
    check(__libc_single_threaded);
    pthread_cleanup_push(cancelled, NULL);
    check(pthread_cancel(pthread_self()) == 0);
    if (strcmp(call, "read") == 0) {
        read(sock, room, 1);
    } else if (strcmp(call, "write") == 0) {
        write(sock, room, 1);
    } else if (strcmp(call, "recv") == 0) {
        recv(sock, room, 1, 0);
    } else if (strcmp(call, "send") == 0) {
        send(sock, room, 1, 0);
    } else {
        close(sock);
    }
    _exit(3); /* it came back; to say so would be a call that heeds the cancellation */
    pthread_cleanup_pop(0);
}

/* ---- signals ---- */

struct record {
    unsigned who, number;
    char rest[56];
};

#define RECORDS 60000
static volatile unsigned by_handler;

static void on_timer(int signum)
{
    struct record record = {1, by_handler, {0}};
    int saved = errno;

    (void)signum;
    if (send(sock, &record, sizeof record, MSG_NOSIGNAL) == sizeof record) {
        by_handler++;
    }
    errno = saved;
}

static void records(int fd)
{
    static struct record batch[64];
    unsigned next[2] = {0, 0}, total[2];
    char warm[100];
    size_t n;

    for (int i = 0; i < 50; i++) {
        check(read_all(fd, warm, sizeof warm) == sizeof warm);
        write_all(fd, warm, sizeof warm);
    }
    while ((n = read_all(fd, batch, sizeof *batch)) == sizeof *batch) {
        check(batch[0].who < 2 && batch[0].number == next[batch[0].who]);
        next[batch[0].who]++;
        if (batch[0].who == 0 && batch[0].rest[0] == 'e') {
            break;
        }
    }
    total[0] = next[0], total[1] = next[1];
    write_all(fd, total, sizeof total);
}

static void signals(void)
{
    pid_t child = connect_to_child(records);
    struct sigaction action = {.sa_handler = on_timer, .sa_flags = SA_RESTART};
    struct itimerval often = {{0, 1000}, {0, 1000}}, never = {{0, 0}, {0, 0}};
    unsigned total[2];
    char byte;

    ping(50);
    sigaction(SIGALRM, &action, NULL);
    setitimer(ITIMER_REAL, &often, NULL);
    for (unsigned i = 0; i < RECORDS; i++) {
        struct record record = {0, i, {0}};

        if (i == RECORDS - 1) {
            setitimer(ITIMER_REAL, &never, NULL);
            record.rest[0] = 'e';
        }
        if (i % 1000 == 0) {
            nap_us(2000);
        }
        ssize_t sent;
        while ((sent = send(sock, &record, sizeof record, MSG_NOSIGNAL)) < 0 && errno == EINTR) {
        }
        check(sent == sizeof record);
    }
    check(read_all(sock, total, sizeof total) == sizeof total);
    check(total[0] == RECORDS && total[1] == by_handler && by_handler > 20);
    check(recv(sock, &byte, 1, 0) == 0);
    int status;
    check(waitpid(child, &status, 0) == child && status == 0);
}

/* ---- seccomp ---- */

static const char *filter_kind;

static void confined(int fd)
{
    static char room[65536];
    struct sock_filter rules[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_read, 4, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_write, 3, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_exit, 2, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_exit_group, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof rules / sizeof *rules, rules};
    ssize_t n;

    /* Promoted first, and bytes of the peer are in the ring when the filter comes. */
    for (int i = 0; i < 50; i++) {
        check(read_all(fd, room, 100) == 100);
        write_all(fd, room, 100);
    }
    nap_us(100000);
    check(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    if (strcmp(filter_kind, "strict") == 0) {
        check(prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT) == 0);
    } else {
        check(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
    }
    while ((n = read(fd, room, sizeof room)) > 0) {
        for (ssize_t at = 0, sent; at < n; at += sent) {
            sent = write(fd, room + at, n - at);
            if (sent < 0) {
                syscall(SYS_exit, 3);
            }
        }
    }
    syscall(SYS_exit, n == 0 ? 0 : 4);
}

static void seccomp(void)
{
    static char out[50000], back[50000];
    pid_t child = connect_to_child(confined);

    ping(50);
    for (size_t i = 0; i < sizeof out; i++) {
        out[i] = i * 7 % 251;
    }
    write_all(sock, out, sizeof out);
    nap_us(300000);
    for (int i = 0; i < 20; i++) {
        check(read_all(sock, back, sizeof back) == sizeof back);
        check(memcmp(out, back, sizeof out) == 0);
        if (i < 19) {
            write_all(sock, out, sizeof out);
        }
    }
    finish(child);
}

/* ---- vfork ---- */

static void vforks(void)
{
    pid_t child = connect_to_child(echo);

    ping(50);
    for (int i = 0; i < 20; i++) {
        pid_t helper = vfork();
        int status;

        if (helper == 0) {
            for (int fd = 3; fd < 1100; fd++) {
                close(fd);
            }
            execl("/bin/true", "true", (char *)NULL);
            _exit(1);
        }
        check(waitpid(helper, &status, 0) == helper && status == 0);
        ping(20);
    }
    finish(child);
}

int main(int argc, char **argv)
{
    check(argc >= 2);
    signal(SIGPIPE, SIG_IGN);
    if (strcmp(argv[1], "cancel") == 0) {
        call = argv[2];
        cancel();
    } else if (strcmp(argv[1], "alone") == 0) {
        call = argv[2];
        alone();
    } else if (strcmp(argv[1], "signals") == 0) {
        signals();
    } else if (strcmp(argv[1], "seccomp") == 0) {
        filter_kind = argv[2];
        seccomp();
    } else if (strcmp(argv[1], "vfork") == 0) {
        vforks();
    } else {
        return 2;
    }
    puts("{\"fine\": true}");
    return 0;
}
