/* A client sends on one connection and then on another one; how often does a server with a single thread and a single set
 * hear the second one first?
 *
 * usage: order ROUNDS CASE CPUS LOAD MOST; LOAD gated: the server looks when both have been sent, and nothing is left over
 * CASE: young (the first is a new connection each round, the second an old one), back (the first is the older of two old
 * ones), forth (the newer), fresh (the first is new, and the client speaks before it is accepted); CPUS: 1 or 2; LOAD: idle or busy; MOST: events for each wait
 */
#include "base.h"

#include <sched.h>
#include <sys/epoll.h>

#define WARM 200
#define MOST 64

struct __attribute__((packed)) word {
    char who;
    unsigned round;
};

static int connection(struct sockaddr_in *to)
{
    int fd = socket(AF_INET, SOCK_STREAM, 0), one = 1;

    check(connect(fd, (struct sockaddr *)to, sizeof *to) == 0);
    check(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one) == 0);
    return fd;
}

static void work_us(long us)
{
    struct timespec began, now;

    clock_gettime(CLOCK_MONOTONIC, &began);
    do {
        clock_gettime(CLOCK_MONOTONIC, &now);
    } while ((now.tv_sec - began.tv_sec) * 1000000 + (now.tv_nsec - began.tv_nsec) / 1000 < us);
}

static void say(int fd, char who, unsigned round)
{
    struct word word = {who, round};

    check(send(fd, &word, sizeof word, MSG_NOSIGNAL) == sizeof word);
}

/* Counts how often a second word of a round was heard before the first. */
static void serve(int hear, int busy, int most, int gate)
{
    int set = epoll_create1(0), wrong = 0, one = 1;
    unsigned first = 0;
    struct epoll_event event = {EPOLLIN, {.fd = hear}}, events[MOST];

    check(epoll_ctl(set, EPOLL_CTL_ADD, hear, &event) == 0);
    if (gate >= 0) {
        event.data.fd = gate;
        check(epoll_ctl(set, EPOLL_CTL_ADD, gate, &event) == 0);
    }
    for (;;) {
        char byte;
        int n = epoll_wait(set, events, most, 20000);

        check(n > 0);
        for (int i = 0; i < n; i++) {
            struct word word;
            int fd = events[i].data.fd;

            if (fd == hear) {
                event.data.fd = accept(hear, NULL, NULL);
                check(setsockopt(event.data.fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one) == 0);
                check(epoll_ctl(set, EPOLL_CTL_ADD, event.data.fd, &event) == 0);
                say(event.data.fd, 'a', 0);
                continue;
            }
            if (fd == gate) {
                check(recv(gate, &byte, 1, 0) == 1 && send(gate, "r", 1, 0) == 1 && recv(gate, &byte, 1, 0) == 1);
                continue;
            }
            if (recv(fd, &word, sizeof word, 0) <= 0) {
                close(fd);
                continue;
            }
            switch (word.who) {
            case 'q':
                say(fd, 'q', wrong);
                return;
            case '1':
                first = word.round;
                break;
            default:
                wrong += first != word.round && word.round > WARM;
                say(fd, 'k', word.round);
            }
        }
        if (busy) {
            work_us(20);
        }
    }
}

static unsigned answer(int fd)
{
    struct word word;

    check(recv(fd, &word, sizeof word, MSG_WAITALL) == sizeof word);
    return word.round;
}

int main(int argc, char **argv)
{
    struct sockaddr_in address;
    int rounds = atoi(argv[1]), young = strcmp(argv[2], "young") == 0, fresh = strcmp(argv[2], "fresh") == 0;
    int forth = strcmp(argv[2], "forth") == 0;
    int hear = loopback_listener(&address), one, two, other, status;
    int lines[2], gate = strcmp(argv[4], "gated") == 0;
    char byte = 0;
    cpu_set_t cpus;
    pid_t server;

    check(argc == 6);
    alarm(60);
    if (argv[3][0] == '1') {
        CPU_ZERO(&cpus);
        CPU_SET(sched_getcpu(), &cpus);
        check(sched_setaffinity(0, sizeof cpus, &cpus) == 0);
    }
    check(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, lines) == 0);
    server = fork();
    check(server >= 0);
    if (server == 0) {
        serve(hear, strcmp(argv[4], "busy") == 0, atoi(argv[5]), gate ? lines[1] : -1);
        _exit(0);
    }
    close(hear);
    one = connection(&address);
    answer(one);
    two = connection(&address);
    answer(two);
    if (forth) {
        other = one;
        one = two;
        two = other;
    }
    for (int round = 1; round <= rounds + WARM; round++) {
        if (young && round > WARM) {
            close(one);
            one = connection(&address);
            answer(one);
            nap_us(200);
        }
        if (fresh && round > WARM) {
            close(one);
            one = connection(&address);
            work_us(300);
        }
        if (gate && round > WARM) {
            check(send(lines[0], "p", 1, 0) == 1 && recv(lines[0], &byte, 1, 0) == 1);
        }
        say(one, '1', round);
        say(two, '2', round);
        if (gate && round > WARM) {
            check(send(lines[0], "g", 1, 0) == 1);
        }
        answer(two);
        if (fresh && round > WARM) {
            answer(one);
        }
    }
    say(two, 'q', 0);
    printf("{\"rounds\": %d, \"wrong\": %u}\n", rounds, answer(two));
    fflush(stdout);
    check(waitpid(server, &status, 0) == server && status == 0);
    return 0;
}
