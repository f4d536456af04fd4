/* What every C program of these tests needs: what its calls are declared in, and saying where one failed. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define check(ok)                                                                       \
    do {                                                                                \
        if (!(ok)) {                                                                    \
            fprintf(stderr, "line %d: %s (errno %d)\n", __LINE__, #ok, errno);          \
            exit(1);                                                                    \
        }                                                                               \
    } while (0)

static inline void nap_us(long us)
{
    struct timespec left = {us / 1000000, us % 1000000 * 1000};

    while (nanosleep(&left, &left) < 0 && errno == EINTR) {
    }
}

/* A socket that listens on loopback, and where. */
static inline int loopback_listener(struct sockaddr_in *address)
{
    socklen_t len = sizeof *address;
    int hear = socket(AF_INET, SOCK_STREAM, 0);

    *address = (struct sockaddr_in){.sin_family = AF_INET};
    address->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    check(bind(hear, (struct sockaddr *)address, len) == 0 && listen(hear, 1) == 0);
    check(getsockname(hear, (struct sockaddr *)address, &len) == 0);
    return hear;
}
