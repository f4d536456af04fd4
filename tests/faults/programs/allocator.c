/* A handler closes a connection in the middle of the memory allocator.
 *
 *   allocator serve ADDRESS PORT            sends each MESSAGE back
 *   allocator opens|makes|same ADDRESS PORT
 *       a thread of a client opens the device, or makes a queue pair, and wants memory; a handler that interrupted the
 *       allocator closes another connection (same: the one that gets the queue pair)
 *   allocator holds ADDRESS PORT            earns a queue pair, and is elsewhere then
 *   allocator asks ADDRESS PORT             serves that one: asks for a queue pair; a handler closes that connection
 *
 * Prints "closed", and ends when its input does.
 */
#include "base.h"

#define MESSAGE 64
#define ROUNDS 400
#define ENOUGH 20

/* ---- the allocator: one lock, which no thread may take twice ---- */

void *__libc_malloc(size_t size);
void *__libc_calloc(size_t count, size_t size);
void *__libc_realloc(void *at, size_t size);
void __libc_free(void *at);

static atomic_int held, waiting, calls;

static void enter(void)
{
    atomic_fetch_add(&calls, 1);
    atomic_fetch_add(&waiting, 1);
    while (atomic_exchange(&held, 1))
        nap_us(1000);
    atomic_fetch_sub(&waiting, 1);
}

static void leave(void)
{
    atomic_store(&held, 0);
}

void *malloc(size_t size)
{
    enter();
    void *at = __libc_malloc(size);
    leave();
    return at;
}

void *calloc(size_t count, size_t size)
{
    enter();
    void *at = __libc_calloc(count, size);
    leave();
    return at;
}

void *realloc(void *old, size_t size)
{
    enter();
    void *at = __libc_realloc(old, size);
    leave();
    return at;
}

void free(void *at)
{
    enter();
    __libc_free(at);
    leave();
}

/* ---- the handler ---- */

static volatile int victim, has_closed;

static void closes(int signum)
{
    (void)signum;
    has_closed = close(victim) == 0;
}

/* ---- connections ---- */

static struct sockaddr_in peer;

static int connected(void)
{
    int sock = socket(AF_INET, SOCK_STREAM, 0);

    check(connect(sock, (struct sockaddr *)&peer, sizeof peer) == 0);
    return sock;
}

static int listening(void)
{
    int hear = socket(AF_INET, SOCK_STREAM, 0), yes = 1;

    check(setsockopt(hear, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes) == 0);
    check(bind(hear, (struct sockaddr *)&peer, sizeof peer) == 0 && listen(hear, 8) == 0);
    return hear;
}

static void *echo(void *at)
{
    int sock = (int)(long)at;
    char message[MESSAGE];

    while (recv(sock, message, MESSAGE, MSG_WAITALL) == MESSAGE)
        check(send(sock, message, MESSAGE, 0) == MESSAGE);
    close(sock);
    return NULL;
}

/* False: the connection was closed meanwhile. */
static int exchange(int sock, int rounds)
{
    for (int i = 0; i < rounds; i++) {
        char asked[MESSAGE], answer[MESSAGE];

        memset(asked, i, MESSAGE);
        if (send(sock, asked, MESSAGE, 0) != MESSAGE || recv(sock, answer, MESSAGE, MSG_WAITALL) != MESSAGE)
            return 0;
        check(memcmp(asked, answer, MESSAGE) == 0);
        nap_us(1000);
    }
    return 1;
}

static void *beside(void *at)
{
    int sock = (int)(long)at, went_on = exchange(sock, ROUNDS);

    if (sock == victim)
        check(!went_on && errno == EBADF);
    else
        check(went_on && close(sock) == 0);
    return NULL;
}

static void closes_beside(int is_met, int is_same)
{
    int first = connected(), other;
    pthread_t thread;

    check(exchange(first, is_met ? ROUNDS : 1));
    other = connected();
    victim = is_same ? other : first;
    check(pthread_create(&thread, NULL, beside, (void *)(long)other) == 0);
    enter();
    while (atomic_load(&waiting) == 0)
        nap_us(1000);
    raise(SIGUSR1);
    leave();
    check(pthread_join(thread, NULL) == 0);
    if (is_same)
        close(first);
}

static void asks(void)
{
    char all[ENOUGH * MESSAGE];
    int hear = listening(), before;

    victim = accept(hear, NULL, NULL);
    check(recv(victim, all, sizeof all, MSG_WAITALL) == sizeof all);
    before = atomic_load(&calls);
    for (int i = 0; i < ENOUGH; i++)
        check(send(victim, all, 1, 0) == 1);
    /* For the device, and for the queue pair. */
    while (atomic_load(&calls) < before + 4) {
        check(recv(victim, all, 1, MSG_DONTWAIT) < 0 && errno == EAGAIN);
        nap_us(1000);
    }
    enter();
    raise(SIGUSR1);
    leave();
    close(hear);
}

int main(int argc, char **argv)
{
    struct sigaction action = {.sa_handler = closes, .sa_flags = SA_RESTART};
    char byte;

    check(argc == 4 && sigaction(SIGUSR1, &action, NULL) == 0);
    peer = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(atoi(argv[3]))};
    check(inet_pton(AF_INET, argv[2], &peer.sin_addr) == 1);
    if (strcmp(argv[1], "serve") == 0) {
        for (int hear = listening();;) {
            pthread_t thread;
            int sock = accept(hear, NULL, NULL);

            check(sock >= 0 && pthread_create(&thread, NULL, echo, (void *)(long)sock) == 0);
        }
    }
    if (strcmp(argv[1], "holds") == 0) {
        char message[MESSAGE] = {0};
        int sock = connected();

        for (int i = 0; i < ENOUGH; i++)
            check(send(sock, message, MESSAGE, 0) == MESSAGE);
        check(read(0, &byte, 1) == 0);
        return 0;
    }
    if (strcmp(argv[1], "asks") == 0)
        asks();
    else
        closes_beside(strcmp(argv[1], "opens") != 0, strcmp(argv[1], "same") == 0);
    check(has_closed);
    puts("closed");
    fflush(stdout);
    return read(0, &byte, 1) != 0;
}
