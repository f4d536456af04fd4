// A library that only passes on what a server and its clients call: what any preloaded library costs a program that forks,
// before it does anything.

#include <dlfcn.h>
#include <sys/socket.h>
#include <unistd.h>

// Looked up when the library is loaded, as a child that looked up its first call would pay for a page of its own.
#define PASSED(result, name, parameters, arguments)                                                                            \
    static result(*next_##name) parameters;                                                                                    \
    __attribute__((constructor)) static void find_##name(void) { next_##name = dlsym(RTLD_NEXT, #name); }                      \
    result name parameters { return next_##name arguments; }

PASSED(int, socket, (int domain, int type, int protocol), (domain, type, protocol))
PASSED(int, connect, (int fd, const struct sockaddr *to, socklen_t length), (fd, to, length))
PASSED(int, accept, (int fd, struct sockaddr *from, socklen_t *length), (fd, from, length))
PASSED(int, shutdown, (int fd, int how), (fd, how))
PASSED(int, close, (int fd), (fd))
PASSED(ssize_t, read, (int fd, void *to, size_t length), (fd, to, length))
PASSED(ssize_t, write, (int fd, const void *from, size_t length), (fd, from, length))
PASSED(pid_t, fork, (void), ())
