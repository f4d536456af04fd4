/* A hand-over that waits for the kernel, by one thread, while others wait in epoll sets: those of other connections do not
 * stand meanwhile, and the one of that connection is told what has come.
 *
 * usage: standing level | edge; prints whether a round trip of another connection took long, and what came
 */
#include "ends.h"

#include <limits.h>
#include <sys/epoll.h>

#define UNREAD 200000
#define LATE_MS 800

static struct sockaddr_in address;
static int hear;

/* Another connection to a child: `mute` sends what nobody reads for long, through a small buffer. */
static int connection(int mute, int *to)
{
    int lines[2], one = 1, small_buffer = 4096, fd;

    check(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, lines) == 0);
    fflush(stdout);
    child = fork();
    check(child >= 0);
    if (child == 0) {
        fd = socket(AF_INET, SOCK_STREAM, 0);
        alarm(LIMIT_S);
        if (mute) {
            check(setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &small_buffer, sizeof small_buffer) == 0);
        }
        check(connect(fd, (struct sockaddr *)&address, sizeof address) == 0);
        close(hear);
        close(lines[0]);
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        obey(fd, lines[1]);
    }
    close(lines[1]);
    *to = lines[0];
    fd = accept(hear, NULL, NULL);
    check(fd >= 0);
    if (mute) {
        check(setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &small_buffer, sizeof small_buffer) == 0);
    }
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    return fd;
}

static int quiet_one, quiet_line, way;
static atomic_int is_handed, got_event;

/* What comes on the connection that is handed over. */
static void *watch(void *unused)
{
    struct epoll_event event = {EPOLLIN | way, {.u32 = 1}};
    int set = epoll_create1(0);
    char text[4096];

    (void)unused;
    check(epoll_ctl(set, EPOLL_CTL_ADD, quiet_one, &event) == 0);
    while (!is_handed) {
        if (epoll_wait(set, &event, 1, 20) == 1) {
            got_event = 1;
            nap_us(1000);
        }
    }
    check(way != 0 || epoll_wait(set, &event, 1, 5000) == 1);
    for (long left = UNREAD; left > 0;) {
        ssize_t n = recv(quiet_one, text, sizeof text, 0);

        check(n > 0 && is_pattern(text, UNREAD - left, n));
        left -= n;
    }
    return NULL;
}

static void *hand_over(void *unused)
{
    (void)unused;
    /* For somebody who knows the kernel's stream only. Refused where that does not get all of it. */
    check(fdopen(quiet_one, "r") != NULL || errno == ENOMEM);
    is_handed = 1;
    return NULL;
}

static long now_ms(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

int main(int argc, char **argv)
{
    struct epoll_event event = {EPOLLIN, {.u32 = 2}};
    struct order order = {'e', 50};
    struct answer answer;
    pthread_t watcher, hander;
    int set, status, first;
    long slowest = 0, rounds = 0;
    char text[100] = {0};

    check(argc == 2);
    way = strcmp(argv[1], "edge") == 0 ? EPOLLET : 0;
    alarm(LIMIT_S);
    hear = loopback_listener(&address);
    quiet_one = connection(1, &quiet_line);
    first = child;
    sock = quiet_one;
    line = quiet_line;
    ping(50);
    sock = connection(0, &line);
    ping(50);
    order = (struct order){'s', UNREAD};
    check(send(quiet_line, &order, sizeof order, 0) == sizeof order);
    nap_us(100000);
    set = epoll_create1(0);
    check(epoll_ctl(set, EPOLL_CTL_ADD, sock, &event) == 0);
    check(pthread_create(&watcher, NULL, watch, NULL) == 0);
    nap_us(50000);
    check(pthread_create(&hander, NULL, hand_over, NULL) == 0);
    tell('e', LONG_MAX); /* a million are over before a hand-over is */
    while (!is_handed || rounds < 100) {
        long began = now_ms();

        check(send(sock, text, sizeof text, MSG_NOSIGNAL) == sizeof text);
        check(epoll_wait(set, &event, 1, 20000) == 1);
        check(recv(sock, text, sizeof text, MSG_WAITALL) == sizeof text);
        slowest = now_ms() - began > slowest ? now_ms() - began : slowest;
        rounds++;
    }
    check(pthread_join(hander, NULL) == 0 && pthread_join(watcher, NULL) == 0);
    check(recv(quiet_line, &answer, sizeof answer, 0) == sizeof answer);
    printf("{\"late\": %s, \"event\": %d}\n", slowest >= LATE_MS ? "true" : "false", got_event);
    fflush(stdout);
    fprintf(stderr, "slowest: %ld ms\n", slowest);
    kill(child, SIGKILL);
    kill(first, SIGKILL);
    check(waitpid(child, &status, 0) == child && waitpid(first, &status, 0) == first);
    return 0;
}
