/* The library on a program's stack: who walks it, and how much of it is used.
 *
 *   frames trace               backtrace_symbols_fd on a connection: its lines arrive in order
 *   frames walk CALL [alt]     in a handler that interrupts a call: backtrace comes to main
 *   frames paint CALL          bytes of stack that a call takes on its lane
 *   frames small CALL          the call in a handler on an alternate stack of 8 KiB
 *
 * Prints one line of JSON.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <execinfo.h>

#include "ends.h"

#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/uio.h>
#include <ucontext.h>

#define FRAMES 64
#define SMALL 8192
#define ROOM (256 * 1024)
#define PAINT 0x5a

static const char *call;
static int set;
static volatile sig_atomic_t has_walked, comes_to_main, has_done;

static void trace(void)
{
    static char told[32768], back[32768];
    void *frames[FRAMES];
    int count = backtrace(frames, FRAMES), file = memfd_create("trace", 0);
    ssize_t length, whole;

    check(file >= 0);
    backtrace_symbols_fd(frames, count, file);
    length = pread(file, told + 6, sizeof told / 2, 0) + 6;
    memcpy(told, "begin\n", 6);
    /* The child answers 100 bytes at a time. */
    whole = (length + 99) / 100 * 100;
    memset(told + length, '.', whole - length);
    tell('e', whole / 100);
    check(send(sock, told, 6, MSG_NOSIGNAL) == 6);
    backtrace_symbols_fd(frames, count, sock);
    check(send(sock, told + length, whole - length, MSG_NOSIGNAL) == whole - length);
    check(recv(sock, back, whole, MSG_WAITALL) == whole);
    printf("{\"same\": %s}\n", memcmp(told, back, whole) ? "false" : "true");
}

/* A call that sleeps for a moment. */
static void make_asleep(void)
{
    struct pollfd entry = {sock, POLLIN, 0};
    struct timeval moment = {0, 2000};
    struct epoll_event event;
    char byte;

    if (!strcmp(call, "recv-asleep")) {
        check(setsockopt(sock, SOL_SOCKET, SO_RCVTIMEO, &moment, sizeof moment) == 0);
        check(recv(sock, &byte, 1, 0) < 0 && errno == EAGAIN);
    } else if (!strcmp(call, "poll-asleep")) {
        check(poll(&entry, 1, 2) == 0);
    } else {
        check(!strcmp(call, "epoll_wait-asleep") && epoll_wait(set, &event, 1, 2) == 0);
    }
}

/* A call about a connection, which moves no bytes of it and waits for none. */
static void make_about(void)
{
    struct epoll_event event = {EPOLLIN, {.u64 = 7}};
    struct sockaddr_in address;
    socklen_t len = sizeof(int), room = sizeof address;
    int value = 1, other, hear, accepted;

    if (!strcmp(call, "getsockopt")) {
        check(getsockopt(sock, SOL_SOCKET, SO_ERROR, &value, &len) == 0);
    } else if (!strcmp(call, "setsockopt")) {
        check(setsockopt(sock, IPPROTO_TCP, TCP_NODELAY, &value, sizeof value) == 0);
    } else if (!strcmp(call, "ioctl")) {
        check(ioctl(sock, FIONREAD, &value) == 0);
    } else if (!strcmp(call, "fcntl")) {
        check(fcntl(sock, F_SETFL, fcntl(sock, F_GETFL)) == 0);
    } else if (!strcmp(call, "getpeername")) {
        check(getpeername(sock, (struct sockaddr *)&address, &room) == 0);
    } else if (!strcmp(call, "epoll_ctl")) {
        check(epoll_ctl(set, EPOLL_CTL_MOD, sock, &event) == 0);
    } else if (!strcmp(call, "dup")) {
        other = dup(sock);
        check(other >= 0 && close(other) == 0);
    } else if (!strcmp(call, "dup2")) {
        check(dup2(sock, 100) == 100 && close(100) == 0);
    } else if (!strcmp(call, "socket")) {
        other = socket(AF_INET, SOCK_STREAM, 0);
        check(other >= 0 && close(other) == 0);
    } else if (!strcmp(call, "connect")) {
        hear = loopback_listener(&address);
        other = socket(AF_INET, SOCK_STREAM, 0);
        check(connect(other, (struct sockaddr *)&address, sizeof address) == 0);
        accepted = accept(hear, NULL, NULL);
        check(accepted >= 0 && close(other) == 0 && close(accepted) == 0 && close(hear) == 0);
    } else if (!strcmp(call, "close_range")) {
        check(syscall(SYS_close_range, 900, 1000, 0) == 0);
    } else {
        check(!strcmp(call, "shutdown"));
        check(shutdown(sock, SHUT_WR) == 0);
    }
}


/* One call that finds something at once, or nothing. */
static void make(int flags)
{
    struct pollfd entry = {sock, POLLIN, 0};
    struct timespec none = {0, 0};
    struct timeval no_time = {0, 0};
    struct epoll_event events[4];
    static char room[4096];
    struct iovec vector = {room, 100};
    struct msghdr header = {.msg_iov = &vector, .msg_iovlen = 1};
    fd_set readable;

    if (!strcmp(call, "send")) {
        check(send(sock, room, 0 * flags + 100, MSG_NOSIGNAL) == 100);
    } else if (!strcmp(call, "writev")) {
        check(writev(sock, &vector, 1) == 100);
    } else if (!strcmp(call, "sendmsg")) {
        check(sendmsg(sock, &header, MSG_NOSIGNAL) == 100);
    } else if (!strcmp(call, "recv")) {
        check(recv(sock, room, 100, MSG_DONTWAIT) < 0 && errno == EAGAIN);
    } else if (!strcmp(call, "recvmsg")) {
        check(recvmsg(sock, &header, MSG_DONTWAIT) < 0 && errno == EAGAIN);
    } else if (!strcmp(call, "poll")) {
        check(poll(&entry, 1, 0) == 0);
    } else if (!strcmp(call, "ppoll")) {
        check(ppoll(&entry, 1, &none, NULL) == 0);
    } else if (!strcmp(call, "select")) {
        FD_ZERO(&readable);
        FD_SET(sock, &readable);
        check(select(sock + 1, &readable, NULL, NULL, &no_time) == 0);
    } else if (!strcmp(call, "epoll_wait")) {
        check(epoll_wait(set, events, 4, 0) == 0);
    } else if (strstr(call, "asleep")) {
        make_asleep();
    } else {
        make_about();
    }
}

/* One that waits until a signal interrupts it. */
static void wait_for_signal(void)
{
    struct pollfd entry = {sock, POLLIN, 0};
    struct epoll_event event;
    fd_set readable;
    char byte;
    int got;

    if (!strcmp(call, "recv")) {
        got = recv(sock, &byte, 1, 0);
    } else if (!strcmp(call, "poll")) {
        got = poll(&entry, 1, -1);
    } else if (!strcmp(call, "select")) {
        FD_ZERO(&readable);
        FD_SET(sock, &readable);
        got = select(sock + 1, &readable, NULL, NULL, NULL);
    } else if (!strcmp(call, "epoll_wait")) {
        got = epoll_wait(set, &event, 1, -1);
    } else {
        got = -1;
        errno = EINTR;
        raise(SIGUSR1);
    }
    check(got == -1 && errno == EINTR);
}

static void on_signal(int number)
{
    void *frames[FRAMES];
    int count = backtrace(frames, FRAMES);

    (void)number;
    for (int i = 0; i < count; i++) {
        Dl_info of;

        if (dladdr(frames[i], &of) && of.dli_sname && !strcmp(of.dli_sname, "main")) {
            comes_to_main = 1;
        }
    }
    has_walked = 1;
}

static void on_small(int number)
{
    (void)number;
    make(0);
    has_done = 1;
}

static void *signals(void *thread)
{
    while (!has_walked) {
        nap_us(20000);
        pthread_kill(*(pthread_t *)thread, SIGUSR1);
    }
    return NULL;
}

/* On a painted stack. */
static unsigned char *painted;
static ucontext_t before, inside;

static void on_painted(void)
{
    make(0);
}

static long paint(void)
{
    volatile long deepest = 0;

    painted = malloc(ROOM);
    for (int i = 0; i < 5; i++) {
        memset(painted, PAINT, ROOM);
        check(getcontext(&inside) == 0);
        inside.uc_stack.ss_sp = painted;
        inside.uc_stack.ss_size = ROOM;
        inside.uc_link = &before;
        makecontext(&inside, on_painted, 0);
        check(swapcontext(&before, &inside) == 0);
        for (long at = 0; at < ROOM; at++) {
            if (painted[at] != PAINT) {
                deepest = ROOM - at > deepest ? ROOM - at : deepest;
                break;
            }
        }
    }
    return deepest;
}

int main(int count, char **words)
{
    static char small_stack[SMALL];
    struct sigaction action = {.sa_handler = on_signal};
    struct epoll_event event = {EPOLLIN, {.u64 = 7}};
    void *once[2];

    check(count > 1);
    backtrace(once, 2); /* loads what it needs */
    call = count > 2 ? words[2] : "";
    connect_to_child();
    alarm(LIMIT_S);
    set = epoll_create1(EPOLL_CLOEXEC);
    check(epoll_ctl(set, EPOLL_CTL_ADD, sock, &event) == 0);
    if (!strcmp(words[1], "walk")) {
        pthread_t self = pthread_self(), other;

        if (count > 3) {
            stack_t stack = {.ss_sp = malloc(65536), .ss_size = 65536};

            action.sa_flags = SA_ONSTACK;
            check(sigaltstack(&stack, NULL) == 0);
        }
        check(sigaction(SIGUSR1, &action, NULL) == 0);
        if (strcmp(call, "raise")) {
            check(pthread_create(&other, NULL, signals, &self) == 0);
        }
        wait_for_signal();
        printf("{\"main\": %s}\n", comes_to_main ? "true" : "false");
    } else if (!strcmp(words[1], "paint")) {
        make(0);
        printf("{\"bytes\": %ld}\n", paint());
    } else if (!strcmp(words[1], "small")) {
        stack_t stack = {.ss_sp = small_stack, .ss_size = SMALL};

        action.sa_handler = on_small;
        action.sa_flags = SA_ONSTACK;
        check(sigaltstack(&stack, NULL) == 0 && sigaction(SIGUSR1, &action, NULL) == 0);
        check(raise(SIGUSR1) == 0);
        printf("{\"done\": %s}\n", has_done ? "true" : "false");
    } else {
        trace();
    }
    fflush(stdout);
    exit(0);
}
