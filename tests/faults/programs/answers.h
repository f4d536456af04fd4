/* A connection to a child, and the trace of calls on it.
 *
 * The child does as it is told over a socket pair. Every call's result is a line of the trace, and so is what the other
 * end got by it: a sum over the bytes.
 */
#include "base.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/timerfd.h>
#include <sys/uio.h>

#define LIMIT_S 50
#define ROUNDS 50

static int sock, line;
static pid_t child;
static char room[1 << 21];

/* ---- the trace ---- */

static int said;

static void say(const char *what, long got, int error)
{
    printf("%s\"%s %ld %s\"", said++ ? ", " : "{\"trace\": [", what, got, got < 0 ? strerrorname_np(error) : "");
}

#define CALL(what, call)                          \
    do {                                          \
        long got_;                                \
                                                  \
        errno = 0;                                \
        got_ = (long)(call);                      \
        say(what, got_, errno);                   \
    } while (0)
#define TRY(call) CALL(#call, call)

/* ---- the child ---- */

struct order {
    char what;
    long n;
};

static unsigned sum_of(const char *bytes, size_t n)
{
    unsigned sum = 2166136261u;

    for (size_t i = 0; i < n; i++) {
        sum = (sum ^ (unsigned char)bytes[i]) * 16777619u;
    }
    return sum;
}

static void obey(int fd, int from)
{
    struct order order;

    while (recv(from, &order, sizeof order, 0) == sizeof order) {
        long answer = 0;

        if (order.what == 'e') {
            for (long i = 0; i < order.n; i++) {
                check(recv(fd, room, 100, MSG_WAITALL) == 100 && send(fd, room, 100, 0) == 100);
            }
        } else if (order.what == 's') {
            for (long i = 0; i < order.n; i++) {
                room[i] = 'a' + i % 23;
            }
            check(send(fd, room, order.n, 0) == order.n);
        } else if (order.what == 'r') {
            check(recv(fd, room, order.n, MSG_WAITALL) == order.n);
            answer = sum_of(room, order.n);
        } else {
            struct pollfd entry = {fd, POLLIN, 0};

            answer = poll(&entry, 1, 2);
        }
        check(send(from, &answer, sizeof answer, 0) == sizeof answer);
    }
    _exit(0);
}

static void tell(char what, long n)
{
    struct order order = {what, n};

    check(send(line, &order, sizeof order, 0) == sizeof order);
}

static long answered(void)
{
    long answer;

    check(recv(line, &answer, sizeof answer, 0) == sizeof answer);
    return answer;
}

static long ask(char what, long n)
{
    tell(what, n);
    return answered();
}

/* The other end gets so many bytes, and no more. */
static void arrives(const char *what, long n)
{
    say(what, n > 0 ? ask('r', n) : 0, 0);
    check(ask('p', 0) == 0);
}

static void ping(void)
{
    tell('e', ROUNDS);
    for (int i = 0; i < ROUNDS; i++) {
        check(send(sock, room, 100, 0) == 100 && recv(sock, room, 100, MSG_WAITALL) == 100);
    }
    answered();
}

/* The child sends: until so much is unread here. */
static void unread(long n)
{
    struct pollfd entry = {sock, POLLIN, 0};

    ask('s', n);
    check(poll(&entry, 1, 5000) == 1);
    nap_us(2000);
}

static void connect_with(int hear, struct sockaddr_in *address)
{
    int one = 1, lines[2];

    check(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, lines) == 0);
    fflush(stdout);
    child = fork();
    check(child >= 0);
    if (child == 0) {
        int fd = socket(AF_INET, SOCK_STREAM, 0);

        alarm(LIMIT_S);
        check(connect(fd, (struct sockaddr *)address, sizeof *address) == 0);
        close(hear);
        close(lines[0]);
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        obey(fd, lines[1]);
    }
    line = lines[0];
    close(lines[1]);
    sock = accept(hear, NULL, NULL);
    check(sock >= 0);
    close(hear);
    setsockopt(sock, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
}

/* A fresh connection on its lanes. */
static void begin(void)
{
    struct sockaddr_in address;
    int hear = loopback_listener(&address);

    connect_with(hear, &address);
    ping();
}

static void end(void)
{
    int status;

    ping();
    close(sock);
    close(line);
    check(waitpid(child, &status, 0) == child && status == 0);
}

/* Without a word to the child, for what cannot go on. */
static void end_here(void)
{
    close(sock);
    close(line);
}

/* A system call that no hook sees. */
static long unseen_setsockopt(int fd, int level, int name, const void *value, long len)
{
#ifdef __x86_64__
    long result;
    register long r10 __asm__("r10") = (long)value;
    register long r8 __asm__("r8") = len;

    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(SYS_setsockopt), "D"((long)fd), "S"((long)level), "d"((long)name), "r"(r10), "r"(r8)
                     : "rcx", "r11", "memory");
    return result;
#else
    return setsockopt(fd, level, name, value, len);
#endif
}
