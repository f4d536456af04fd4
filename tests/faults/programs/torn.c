/* A thread is torn out of a send, with a part of it sent, while another one waits to send: the handler of a fault leaves by a
 * jump. The other one is told at once, and not by its own next look. One line of JSON: whether it was, in any of some rounds.
 */
#include "base.h"

#include <fcntl.h>
#include <setjmp.h>
#include <sys/mman.h>

#define ROUNDS 6
#define GOOD (8 << 20)
#define ALL (GOOD + 65536)
/* Half of the time after which who waits looks by itself. */
#define SOON_NS 50000000

static sigjmp_buf out;
static int sock, line;
static atomic_int sender, waiter;
static long left_ns, sent_ns;

static long now(void)
{
    struct timespec at;

    clock_gettime(CLOCK_MONOTONIC, &at);
    return at.tv_sec * 1000000000L + at.tv_nsec;
}

static void on_fault(int number)
{
    (void)number;
    nap_us(20000); /* the other thread has heard of all room by then, and sleeps again */
    left_ns = now();
    siglongjmp(out, 1);
}

static void serve(int fd, int from)
{
    static char room[65536];
    ssize_t n;

    for (int i = 0; i < 50; i++) {
        check(recv(fd, room, 100, MSG_WAITALL) == 100 && send(fd, room, 100, MSG_NOSIGNAL) == 100);
    }
    while (recv(from, room, 1, 0) == 1) {
        do {
            n = recv(fd, room, sizeof room, 0);
            check(n > 0);
        } while (room[n - 1] != 'B');
        check(send(from, "", 1, MSG_NOSIGNAL) == 1);
    }
    exit(0);
}

/* Sends behind the thread that is torn out. */
static void *send_behind(void *unused)
{
    (void)unused;
    waiter = gettid();
    check(send(sock, "B", 1, MSG_NOSIGNAL) == 1);
    sent_ns = now();
    return NULL;
}

/* When both are asleep, the reader goes on. */
static void *watch(void *unused)
{
    pthread_t second;

    (void)unused;
    until_asleep(&sender);
    waiter = 0;
    check(pthread_create(&second, NULL, send_behind, NULL) == 0);
    until_asleep(&waiter);
    check(send(line, "", 1, MSG_NOSIGNAL) == 1);
    check(pthread_join(second, NULL) == 0);
    return NULL;
}

int main(void)
{
    struct sockaddr_in address;
    int hear = loopback_listener(&address), lines[2], file, status;
    volatile int in_time = 0;
    char name[] = "/tmp/torn-XXXXXX", text[100] = "", *map;
    struct sigaction action = {.sa_handler = on_fault};
    pid_t child;

    check(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, lines) == 0);
    child = fork();
    sender = gettid();
    alarm(50);
    if (child == 0) {
        sock = socket(AF_INET, SOCK_STREAM, 0);
        close(lines[0]);
        close(hear);
        check(connect(sock, (struct sockaddr *)&address, sizeof address) == 0);
        serve(sock, lines[1]);
    }
    line = lines[0];
    close(lines[1]);
    sock = accept(hear, NULL, NULL);
    check(sock >= 0);
    for (int i = 0; i < 50; i++) {
        check(send(sock, text, 100, MSG_NOSIGNAL) == 100 && recv(sock, text, 100, MSG_WAITALL) == 100);
    }
    file = mkstemp(name);
    check(file >= 0 && unlink(name) == 0 && ftruncate(file, GOOD) == 0);
    map = mmap(NULL, ALL, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    check(map != MAP_FAILED);
    memset(map, 'a', GOOD);
    check(sigaction(SIGBUS, &action, NULL) == 0);
    for (volatile int i = 0; i < ROUNDS; i++) {
        pthread_t watcher;

        check(pthread_create(&watcher, NULL, watch, NULL) == 0);
        if (sigsetjmp(out, 1) == 0) {
            send(sock, map, ALL, MSG_NOSIGNAL);
        }
        check(pthread_join(watcher, NULL) == 0 && recv(line, text, 1, 0) == 1);
        in_time += sent_ns - left_ns < SOON_NS;
    }
    printf("{\"told\": %s}\n", in_time ? "true" : "false");
    close(line);
    check(waitpid(child, &status, 0) == child && status == 0);
    return 0;
}
