/* A library that is preloaded behind ours and counts the calls that pass it. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sys/types.h>

static long calls;

long counted(void)
{
    return calls;
}

ssize_t recv(int fd, void *to, size_t n, int flags)
{
    ssize_t (*next)(int, void *, size_t, int) = (ssize_t (*)(int, void *, size_t, int))dlsym(RTLD_NEXT, "recv");

    calls++;
    return next(fd, to, n, flags);
}

ssize_t send(int fd, const void *from, size_t n, int flags)
{
    ssize_t (*next)(int, const void *, size_t, int) =
        (ssize_t (*)(int, const void *, size_t, int))dlsym(RTLD_NEXT, "send");

    calls++;
    return next(fd, from, n, flags);
}
