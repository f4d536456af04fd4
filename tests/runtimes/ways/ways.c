/* The tables of `ways.h`, but for io_uring's. */
#define _GNU_SOURCE
#include "ways.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

void give_up(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, strerror(errno));
    exit(3);
}

/* ---- read and write in several spellings ---- */

/* The flags of `send` and `recv` that the conversation uses: only "do not wait". read and write have
 * none, so that such a call is made by `send` or `recv`. */

static ssize_t write_vector(int fd, const void *from, size_t n, int flags)
{
    struct iovec parts[2] = {{(void *)from, n / 3}, {(char *)from + n / 3, n - n / 3}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};

    return flags ? sendmsg(fd, &message, flags) : writev(fd, parts, 2);
}

static ssize_t read_vector(int fd, void *to, size_t n, int flags)
{
    struct iovec parts[2] = {{to, n / 3}, {(char *)to + n / 3, n - n / 3}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};

    return flags ? recvmsg(fd, &message, flags) : readv(fd, parts, 2);
}

/* ---- fortified spellings, as compilers call them where a buffer's size is known ---- */

#ifndef WAYS_STATIC
ssize_t __read_chk(int, void *, size_t, size_t);
ssize_t __recv_chk(int, void *, size_t, size_t, int);
ssize_t __recvfrom_chk(int, void *, size_t, size_t, int, void *, void *);
int __poll_chk(struct pollfd *, nfds_t, int, size_t);
int __ppoll_chk(struct pollfd *, nfds_t, const struct timespec *, const void *, size_t);

static ssize_t recv_chk(int fd, void *to, size_t n, int flags)
{
    static unsigned turn;

    switch (flags ? 1 : turn++ % 3) {
    case 0: return __read_chk(fd, to, n, n);
    case 1: return __recv_chk(fd, to, n, n, flags);
    default: return __recvfrom_chk(fd, to, n, n, 0, NULL, NULL);
    }
}

static int poll_chk(struct pollfd *fds, nfds_t n, int timeout_ms)
{
    static unsigned turn;
    struct timespec limit = {timeout_ms / 1000, timeout_ms % 1000 * 1000000L};

    if (turn++ % 2) {
        return __poll_chk(fds, n, timeout_ms, n * sizeof *fds);
    }
    return __ppoll_chk(fds, n, timeout_ms < 0 ? NULL : &limit, NULL, n * sizeof *fds);
}

/* libc's own second names. */
ssize_t __read(int, void *, size_t);
ssize_t __write(int, const void *, size_t);
ssize_t __send(int, const void *, size_t, int);
int __poll(struct pollfd *, nfds_t, int);
int __close(int);

static ssize_t second_send(int fd, const void *from, size_t n, int flags)
{
    return flags ? __send(fd, from, n, flags) : __write(fd, from, n);
}

static ssize_t second_recv(int fd, void *to, size_t n, int flags)
{
    return flags ? recv(fd, to, n, flags) : __read(fd, to, n);
}

/* ---- plug-ins ---- */

static struct way loaded;

/* A plug-in with a libc of its own has an errno of its own. */
static int (*plugin_errno)(void);

static long settled(long result)
{
    if (result < 0) {
        errno = plugin_errno();
    }
    return result;
}

static ssize_t plugin_send(int fd, const void *from, size_t n, int flags)
{
    return settled(loaded.send(fd, from, n, flags));
}

static ssize_t plugin_recv(int fd, void *to, size_t n, int flags)
{
    return settled(loaded.recv(fd, to, n, flags));
}

static int plugin_poll(struct pollfd *fds, nfds_t n, int timeout_ms)
{
    return settled(loaded.poll(fds, n, timeout_ms));
}

static int plugin_shutdown(int fd, int how) { return settled(loaded.shutdown(fd, how)); }
static int plugin_dup(int fd) { return settled(loaded.dup(fd)); }
static int plugin_close(int fd) { return settled(loaded.close(fd)); }

static struct way plugin(void *handle)
{
    if (!handle) {
        fprintf(stderr, "%s\n", dlerror());
        exit(3);
    }
    loaded.send = (ssize_t(*)(int, const void *, size_t, int))dlsym(handle, "plugin_send");
    loaded.recv = (ssize_t(*)(int, void *, size_t, int))dlsym(handle, "plugin_recv");
    loaded.poll = (int (*)(struct pollfd *, nfds_t, int))dlsym(handle, "plugin_poll");
    loaded.shutdown = (int (*)(int, int))dlsym(handle, "plugin_shutdown");
    loaded.dup = (int (*)(int))dlsym(handle, "plugin_dup");
    loaded.close = (int (*)(int))dlsym(handle, "plugin_close");
    plugin_errno = (int (*)(void))dlsym(handle, "plugin_errno");
    return (struct way){"plugin", plugin_send, plugin_recv, plugin_poll, plugin_shutdown, plugin_dup,
                        plugin_close};
}
#endif

/* ---- syscall() ---- */

static ssize_t syscall_send(int fd, const void *from, size_t n, int flags)
{
    static unsigned turn;

    if (!flags && turn++ % 2) {
        return syscall(SYS_write, fd, from, n);
    }
    return syscall(SYS_sendto, fd, from, n, flags, NULL, 0);
}

static ssize_t syscall_recv(int fd, void *to, size_t n, int flags)
{
    static unsigned turn;

    if (!flags && turn++ % 2) {
        return syscall(SYS_read, fd, to, n);
    }
    return syscall(SYS_recvfrom, fd, to, n, flags, NULL, NULL);
}

static int syscall_poll(struct pollfd *fds, nfds_t n, int timeout_ms)
{
    return syscall(SYS_poll, fds, n, timeout_ms);
}

static int syscall_shutdown(int fd, int how) { return syscall(SYS_shutdown, fd, how); }
static int syscall_dup(int fd) { return syscall(SYS_dup, fd); }
static int syscall_close(int fd) { return syscall(SYS_close, fd); }

/* ---- system calls without libc ---- */

static long inlined(long number, long a, long b, long c, long d, long e, long f)
{
    register long r10 __asm__("r10") = d;
    register long r8 __asm__("r8") = e;
    register long r9 __asm__("r9") = f;
    long result;

    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    if (result < 0) {
        errno = -result;
        return -1;
    }
    return result;
}

static ssize_t inline_send(int fd, const void *from, size_t n, int flags)
{
    return inlined(SYS_sendto, fd, (long)from, n, flags, 0, 0);
}

static ssize_t inline_recv(int fd, void *to, size_t n, int flags)
{
    return inlined(SYS_recvfrom, fd, (long)to, n, flags, 0, 0);
}

static int inline_poll(struct pollfd *fds, nfds_t n, int timeout_ms)
{
    return inlined(SYS_poll, (long)fds, n, timeout_ms, 0, 0, 0);
}

static int inline_shutdown(int fd, int how) { return inlined(SYS_shutdown, fd, how, 0, 0, 0, 0); }
static int inline_dup(int fd) { return inlined(SYS_dup, fd, 0, 0, 0, 0, 0); }
static int inline_close(int fd) { return inlined(SYS_close, fd, 0, 0, 0, 0, 0); }

/* What `send` and `recv` would do on a socket that blocks. */
static ssize_t patient_send(int fd, const void *from, size_t n, int flags)
{
    struct pollfd entry = {.fd = fd, .events = POLLOUT};
    ssize_t sent;

    while ((sent = send(fd, from, n, flags)) < 0 && errno == EAGAIN && !(flags & MSG_DONTWAIT)) {
        inline_poll(&entry, 1, -1);
    }
    return sent;
}

static ssize_t patient_recv(int fd, void *to, size_t n, int flags)
{
    struct pollfd entry = {.fd = fd, .events = POLLIN};
    ssize_t got;

    while ((got = recv(fd, to, n, flags)) < 0 && errno == EAGAIN && !(flags & MSG_DONTWAIT)) {
        inline_poll(&entry, 1, -1);
    }
    return got;
}

static const struct way ways[] = {
    {"libc", send, recv, poll, shutdown, dup, close},
    {"vectors", write_vector, read_vector, poll, shutdown, dup, close},
    {"syscall", syscall_send, syscall_recv, syscall_poll, syscall_shutdown, syscall_dup, syscall_close},
    {"inline", inline_send, inline_recv, inline_poll, inline_shutdown, inline_dup, inline_close},
    /* One direction past libc, waits and life cycle by libc. */
    {"inline-recv", send, inline_recv, poll, shutdown, dup, close},
    {"inline-send", inline_send, recv, poll, shutdown, dup, close},
    /* Bytes by libc on a non-blocking socket, waits past it. */
    {"inline-poll", patient_send, patient_recv, inline_poll, shutdown, dup, close},
#ifndef WAYS_STATIC
    {"fortified", send, recv_chk, poll_chk, shutdown, dup, close},
    {"second", second_send, second_recv, __poll, shutdown, dup, __close},
#endif
};

struct way way_of(const char *name)
{
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        if (strcmp(name, ways[i].name) == 0) {
            return ways[i];
        }
    }
#ifndef WAYS_STATIC
    const char *path = getenv("WAYS_PLUGIN");

    if (strcmp(name, "plugin") == 0) {
        return plugin(dlopen(path, RTLD_NOW | RTLD_LOCAL));
    }
    if (strcmp(name, "deepbind") == 0) {
        return plugin(dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND));
    }
    if (strcmp(name, "dlmopen") == 0) {
        return plugin(dlmopen(LM_ID_NEWLM, path, RTLD_NOW));
    }
    if (strncmp(name, "uring", 5) == 0) {
        if (!uring_open(strcmp(name, "uring-lib") == 0)) {
            /* What such programs do: without the ring by other means. */
            fprintf(stderr, "no io_uring: libc\n");
            return ways[0];
        }
        return uring_way;
    }
#endif
    errno = EINVAL;
    give_up(name);
}
