/* What every C program of these tests needs: what its calls are declared in, saying where one failed, and looking at
 * threads. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
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

/* ---- threads ---- */

static inline int thread_id(void)
{
    return (int)syscall(SYS_gettid);
}

static inline char state_of(int tid)
{
    char path[64], text[512], *at;
    FILE *file;
    size_t n;

    snprintf(path, sizeof path, "/proc/self/task/%d/stat", tid);
    file = fopen(path, "r");
    if (!file) {
        return 'X';
    }
    n = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[n] = 0;
    at = strrchr(text, ')');
    return at ? at[2] : '?';
}

/* Until a thread, whose id appears in *tid, sleeps, and for good. */
static inline void until_asleep(atomic_int *tid)
{
    for (int calm = 0; calm < 5;) {
        nap_us(1000);
        calm = *tid && state_of(*tid) == 'S' ? calm + 1 : 0;
    }
}
