/* The ways in which a program may reach a socket: one table of calls each. */
#pragma once
#include <poll.h>
#include <sys/types.h>

struct way {
    const char *name;
    ssize_t (*send)(int fd, const void *from, size_t n, int flags);
    ssize_t (*recv)(int fd, void *to, size_t n, int flags);
    int (*poll)(struct pollfd *fds, nfds_t n, int timeout_ms);
    int (*shutdown)(int fd, int how);
    int (*dup)(int fd);
    int (*close)(int fd);
};

/* The way of that name, ready for use; ends the program where there is none. */
struct way way_of(const char *name);

/* io_uring: sets up a ring of each thread's own. False if the kernel, or a library, refuses. */
int uring_open(int with_liburing);
int uring_accept(int listener);
int uring_connect(int fd, const void *address, unsigned length);
extern const struct way uring_way;

/* Ends the program with a word on standard error. */
__attribute__((noreturn)) void give_up(const char *what);
