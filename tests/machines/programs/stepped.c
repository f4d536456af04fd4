/* User instructions and system calls of one send or one receive over a connection to another machine.
 *
 *   stepped serve ADDRESS PORT
 *   stepped trace COMMAND...             runs `stepped ask ...`, by way of env if need be, and steps through
 *                                        the operations that count
 *   stepped ask ADDRESS PORT BYTES       requests and answers of so many bytes, the last ones between stops
 *
 * Printed is a line for each send and each receive that counts, in turn: instructions, system calls but for
 * posts to an RDMA device and requests to be told of its completions, these two, and the numbers of the
 * others; the last is the one that stops. How many calls of the program an operation took is printed to
 * standard error. An instruction that repeats itself counts once. What is received is there
 * when it is asked for.
 */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* Commands of <rdma/ib_user_verbs.h>. */
enum { REQUEST_NOTIFY = 23, POST_SEND = 28 };
enum { SYSCALL = 0x050f };
enum { OPERATIONS = 12, LISTED = 1000, WARM = 400, REST_US = 20000, CACHE = 1 << 20 };
/* Behind so many rounds one takes a millisecond, until looks beside calls have grown rare. */
enum { QUICK = 100, SLOW_US = 1000 };

static char bytes[1 << 17];

static void fail(const char *what)
{
    perror(what);
    exit(1);
}

static int whole(int fd, char *to, int left)
{
    int calls = 0;
    for (; left > 0; calls++) {
        ssize_t n = recv(fd, to, left, 0);
        if (n <= 0)
            fail("recv");
        to += n;
        left -= n;
    }
    return calls;
}

static int put(int fd, const char *from, int left)
{
    int calls = 0;
    for (; left > 0; calls++) {
        ssize_t n = send(fd, from, left, 0);
        if (n <= 0)
            fail("send");
        from += n;
        left -= n;
    }
    return calls;
}

/* Everything back, in messages of as many bytes as the first one says. */
static void serve(struct sockaddr_in *at)
{
    int fd = socket(AF_INET, SOCK_STREAM, 0), one = 1, size;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(fd, (struct sockaddr *)at, sizeof *at) || listen(fd, 1))
        fail("listen");
    fd = accept(fd, 0, 0);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    whole(fd, (char *)&size, sizeof size);
    if (size < 1 || size > (int)sizeof bytes)
        exit(2);
    for (;;) {
        for (int left = size; left > 0;) {
            ssize_t n = recv(fd, bytes + size - left, left, 0);
            if (n <= 0)
                exit(0);
            left -= n;
        }
        put(fd, bytes, size);
    }
}

/* One instruction that is counted, where `raise` takes many. */
static void stop(pid_t own)
{
    long result = SYS_tgkill;
    register long signal __asm__("rdx") = SIGSTOP;
    __asm__ volatile("syscall" : "+a"(result) : "D"((long)own), "S"((long)own), "r"(signal) : "rcx", "r11", "memory");
}

static void ask(struct sockaddr_in *at, int size)
{
    int fd = socket(AF_INET, SOCK_STREAM, 0), one = 1;
    pid_t own = getpid();
    if (connect(fd, (struct sockaddr *)at, sizeof *at))
        fail("connect");
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    put(fd, (char *)&size, sizeof size);
    /* A send counts in one round of four, a receive in another: what is due when a stepped call has taken long is done by
     * calls that do not count. Rests differ, so that no work with a period of its own falls into each round that counts. */
    for (int i = 0; i < WARM + 4 * OPERATIONS; i++) {
        int counts_send = i >= WARM && i % 4 == 0, counts_receive = i >= WARM && i % 4 == 2, sends, receives;
        for (int j = 0; j < 64; j++)
            bytes[j] = (char)(i + j);
        if (counts_send)
            stop(own);
        sends = put(fd, bytes, size);
        if (counts_send)
            stop(own);
        bytes[0] ^= 1;
        if (i >= QUICK)
            usleep(i < WARM ? SLOW_US : REST_US * (i % 7 + 1) / 4);
        if (counts_receive)
            stop(own);
        receives = whole(fd, bytes, size);
        if (counts_receive)
            stop(own);
        if (counts_send || counts_receive)
            dprintf(2, "%d\n", counts_send ? sends : receives);
        for (int j = 0; j < 64 && j < size; j++)
            if (bytes[j] != (char)(i + j))
                exit(3);
    }
    close(fd);
    exit(0);
}

/* The code at an address: asked for once for each. */
static unsigned long code(pid_t child, unsigned long at)
{
    static struct { unsigned long at, code; } seen[CACHE];
    unsigned long i = at * 0x9E3779B97F4A7C15ul >> 44;
    if (seen[i].at != at) {
        seen[i].at = at;
        seen[i].code = ptrace(PTRACE_PEEKTEXT, child, at, 0);
    }
    return seen[i].code;
}

/* The length of an instruction that repeats itself, or 0. */
static int repeats(unsigned long code)
{
    unsigned long two = code & 0xffff, three = code & 0xffffff;
    return two == 0xa4f3 || two == 0xaaf3 ? 2 : three == 0xa548f3 || three == 0xab48f3 ? 3 : 0;
}

/* Through an instruction that repeats itself at once, by way of a break behind it. */
static int leap(pid_t child, unsigned long to)
{
    int status;
    unsigned long was = ptrace(PTRACE_PEEKTEXT, child, to, 0);
    if (ptrace(PTRACE_POKETEXT, child, to, (was & ~0xfful) | 0xcc) || ptrace(PTRACE_CONT, child, 0, 0))
        return 0;
    if (waitpid(child, &status, __WALL) != child || !WIFSTOPPED(status) || WSTOPSIG(status) != SIGTRAP)
        return 0;
    return !ptrace(PTRACE_POKETEXT, child, to, was) && !ptrace(PTRACE_POKEUSER, child, offsetof(struct user, regs.rip), to);
}

static unsigned long reg(pid_t child, size_t offset)
{
    return ptrace(PTRACE_PEEKUSER, child, offset, 0);
}

/* The command that a system call writes to an RDMA device; 0: none. */
static int command_of(pid_t child)
{
    char link[64], to[256] = "";
    if (reg(child, offsetof(struct user, regs.rax)) != SYS_write)
        return 0;
    snprintf(link, sizeof link, "/proc/%d/fd/%lu", child, reg(child, offsetof(struct user, regs.rdi)));
    if (readlink(link, to, sizeof to - 1) <= 0 || !strstr(to, "uverbs"))
        return 0;
    return ptrace(PTRACE_PEEKDATA, child, reg(child, offsetof(struct user, regs.rsi)), 0) & 0xff;
}

/* Waits for the next stop that the child makes itself; 0: it has ended. */
static int go_on(pid_t child)
{
    int status, signal = 0;
    for (;;) {
        if (ptrace(PTRACE_CONT, child, 0, signal) || waitpid(child, &status, __WALL) != child || !WIFSTOPPED(status))
            return 0;
        if (WSTOPSIG(status) == SIGSTOP)
            return 1;
        signal = WSTOPSIG(status) == SIGTRAP ? 0 : WSTOPSIG(status);
    }
}

static long long now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000ll + now.tv_nsec;
}

/* Takes the time that was stepped through away from what the child has just read from a clock: to it none has passed. */
static void hold_clock(pid_t child, unsigned long at, long long began)
{
    long long seconds = ptrace(PTRACE_PEEKDATA, child, at, 0), nanos = ptrace(PTRACE_PEEKDATA, child, at + 8, 0);
    long long held = seconds * 1000000000ll + nanos - (now_ns() - began);
    ptrace(PTRACE_POKEDATA, child, at, held / 1000000000ll);
    ptrace(PTRACE_POKEDATA, child, at + 8, held % 1000000000ll);
}

static char list[20 * LISTED];

static int trace(char **command)
{
    int status, operations = 0;
    pid_t child = fork();
    if (child == 0) {
        if (ptrace(PTRACE_TRACEME, 0, 0, 0) == 0)
            execvp(command[0], command);
        fail(command[0]);
    }
    if (waitpid(child, &status, 0) != child || !WIFSTOPPED(status))
        return 1;
    while (go_on(child)) {
        long instructions = 0, calls = 0, posts = 0, arms = 0, listed = 0;
        unsigned long before = 0, clock = 0;
        long long began = now_ns();
        for (;;) {
            unsigned long at = reg(child, offsetof(struct user, regs.rip)), is = code(child, at);
            instructions += at != before;
            before = at;
            if (repeats(is)) {
                if (!leap(child, at + repeats(is)))
                    return 1;
                continue;
            }
            if ((is & 0xffff) == SYSCALL) {
                int written = command_of(child);
                posts += written == POST_SEND;
                arms += written == REQUEST_NOTIFY;
                /* That the clock asks the kernel is the emulated machine's. */
                if (reg(child, offsetof(struct user, regs.rax)) == SYS_clock_gettime)
                    clock = reg(child, offsetof(struct user, regs.rsi));
                else if (calls++ < LISTED && !written)
                    listed += snprintf(list + listed, sizeof list - listed, " %lu", reg(child, offsetof(struct user, regs.rax)));
            }
            if (ptrace(PTRACE_SINGLESTEP, child, 0, 0) || waitpid(child, &status, __WALL) != child || !WIFSTOPPED(status))
                return 1;
            if (WSTOPSIG(status) == SIGSTOP)
                break;
            if (clock)
                hold_clock(child, clock, began);
            clock = 0;
        }
        /* The call that stops is none of the operation's. */
        printf("%ld %ld %ld %ld%s\n", instructions - 1, calls - 1 - posts - arms, posts, arms, listed ? list : "");
        fflush(stdout);
        operations++;
    }
    return operations != 2 * OPERATIONS;
}

int main(int argc, char **argv)
{
    struct sockaddr_in at = { .sin_family = AF_INET };
    if (argc > 2 && !strcmp(argv[1], "trace"))
        return trace(argv + 2);
    if (argc < 4 || !inet_pton(AF_INET, argv[2], &at.sin_addr))
        return 2;
    at.sin_port = htons(atoi(argv[3]));
    if (!strcmp(argv[1], "serve"))
        serve(&at);
    if (argc != 5 || atoi(argv[4]) < 1 || atoi(argv[4]) > (int)sizeof bytes)
        return 2;
    ask(&at, atoi(argv[4]));
}
