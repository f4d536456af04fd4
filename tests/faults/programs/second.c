/* A library that is preloaded beside ours, and answers each call with one of `syscall`, as some do to change an argument.
 * SECOND_COUNT names a file to which a byte is written at the end for each kind of call that came by. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

static int met[32];

/* A second call on the way down in the same call would go on for ever. */
static _Thread_local int depth;

static long through(int which, long number, long a, long b, long c, long d, long e, long f)
{
    long result;

    met[which] = 1;
    if (++depth > 4) {
        abort();
    }
    result = syscall(number, a, b, c, d, e, f);
    depth--;
    return result;
}

#define A(x) ((long)(x))

int socket(int domain, int type, int protocol)
{
    return through(0, SYS_socket, domain, type, protocol, 0, 0, 0);
}

int connect(int fd, const struct sockaddr *to, socklen_t len)
{
    return through(1, SYS_connect, fd, A(to), len, 0, 0, 0);
}

int listen(int fd, int backlog)
{
    return through(2, SYS_listen, fd, backlog, 0, 0, 0, 0);
}

int accept(int fd, struct sockaddr *from, socklen_t *len)
{
    return through(3, SYS_accept4, fd, A(from), A(len), 0, 0, 0);
}

ssize_t read(int fd, void *to, size_t n)
{
    return through(4, SYS_read, fd, A(to), n, 0, 0, 0);
}

ssize_t write(int fd, const void *from, size_t n)
{
    return through(5, SYS_write, fd, A(from), n, 0, 0, 0);
}

ssize_t recv(int fd, void *to, size_t n, int flags)
{
    return through(6, SYS_recvfrom, fd, A(to), n, flags, 0, 0);
}

ssize_t send(int fd, const void *from, size_t n, int flags)
{
    return through(7, SYS_sendto, fd, A(from), n, flags, 0, 0);
}

ssize_t readv(int fd, const struct iovec *parts, int n)
{
    return through(8, SYS_readv, fd, A(parts), n, 0, 0, 0);
}

ssize_t writev(int fd, const struct iovec *parts, int n)
{
    return through(9, SYS_writev, fd, A(parts), n, 0, 0, 0);
}

ssize_t recvmsg(int fd, struct msghdr *message, int flags)
{
    return through(10, SYS_recvmsg, fd, A(message), flags, 0, 0, 0);
}

ssize_t sendmsg(int fd, const struct msghdr *message, int flags)
{
    return through(11, SYS_sendmsg, fd, A(message), flags, 0, 0, 0);
}

int recvmmsg(int fd, struct mmsghdr *messages, unsigned n, int flags, struct timespec *limit)
{
    return through(12, SYS_recvmmsg, fd, A(messages), n, flags, A(limit), 0);
}

int sendmmsg(int fd, struct mmsghdr *messages, unsigned n, int flags)
{
    return through(13, SYS_sendmmsg, fd, A(messages), n, flags, 0, 0);
}

int poll(struct pollfd *all, nfds_t n, int timeout)
{
    struct timespec limit = {timeout / 1000, timeout % 1000 * 1000000L};

    return through(14, SYS_ppoll, A(all), n, timeout < 0 ? 0 : A(&limit), 0, 8, 0);
}

int epoll_create1(int flags)
{
    return through(15, SYS_epoll_create1, flags, 0, 0, 0, 0, 0);
}

int epoll_ctl(int set, int what, int fd, struct epoll_event *event)
{
    return through(16, SYS_epoll_ctl, set, what, fd, A(event), 0, 0);
}

int epoll_wait(int set, struct epoll_event *events, int n, int timeout)
{
    return through(17, SYS_epoll_pwait, set, A(events), n, timeout, 0, 8);
}

int dup(int fd)
{
    return through(18, SYS_dup, fd, 0, 0, 0, 0, 0);
}

int dup2(int old, int new)
{
    return old == new ? fcntl(old, F_GETFL) < 0 ? -1 : new : through(19, SYS_dup3, old, new, 0, 0, 0, 0);
}

int close(int fd)
{
    return through(20, SYS_close, fd, 0, 0, 0, 0, 0);
}

int shutdown(int fd, int how)
{
    return through(21, SYS_shutdown, fd, how, 0, 0, 0, 0);
}

int setsockopt(int fd, int level, int name, const void *value, socklen_t len)
{
    return through(22, SYS_setsockopt, fd, level, name, A(value), len, 0);
}

int close_range(unsigned first, unsigned last, int flags)
{
    return through(23, SYS_close_range, first, last, flags, 0, 0, 0);
}

int accept4(int fd, struct sockaddr *from, socklen_t *len, int flags)
{
    return through(24, SYS_accept4, fd, A(from), A(len), flags, 0, 0);
}

pid_t fork(void)
{
    return through(25, SYS_clone, SIGCHLD, 0, 0, 0, 0, 0);
}

__attribute__((destructor)) static void tell(void)
{
    const char *path = getenv("SECOND_COUNT");
    int count = 0;

    for (int i = 0; i < 32; i++) {
        count += met[i];
    }
    if (path) {
        int fd = syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_CREAT | O_APPEND, 0600);

        for (; fd >= 0 && count > 0; count--) {
            syscall(SYS_write, fd, "x", 1);
        }
    }
}
