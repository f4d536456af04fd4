/* Waits with a signal mask or with a time in nanoseconds, on a connection that is on its lane.
 *
 *   masks CALL
 *
 * CALL: ppoll, pselect, epoll_pwait, epoll_pwait2, or syscall, which is the last one's number. Prints one line of
 * JSON: what the calls answered, how often the signal's handler ran, and whether the mask was as before. "payload" is
 * what both ends together should have received after the warm-up, in bytes.
 */
#include "sets.h"

#include <sys/select.h>

#define ROUNDS 6
#define TRIPS 20
#define ANSWERS 16

static int set;
static const char *call;
static atomic_int ran, waiter, asked;

static void runs(int number)
{
    (void)number;
    ran++;
}

/* One wait for something to read: what it answers, −errno where it fails. */
static int waits(const struct timespec *time, const sigset_t *mask)
{
    int fd = conns[0], n, milliseconds = time ? (time->tv_nsec + 999999) / 1000000 + time->tv_sec * 1000 : -1;
    struct epoll_event event = {0};
    struct timespec copy, *left = NULL;
    int is_right;

    /* The kernel's call for pselect and ppoll writes down what is left; libc's function does not. */
    if (time) {
        copy = *time;
        left = &copy;
    }
    errno = 0;
    if (!strcmp(call, "ppoll")) {
        struct pollfd entry = {fd, POLLIN, 0};

        n = ppoll(&entry, 1, left, mask);
        is_right = entry.revents == POLLIN;
    } else if (!strcmp(call, "pselect")) {
        fd_set all;

        FD_ZERO(&all);
        FD_SET(fd, &all);
        n = pselect(fd + 1, &all, NULL, NULL, left, mask);
        is_right = FD_ISSET(fd, &all);
    } else {
        if (!strcmp(call, "epoll_pwait"))
            n = epoll_pwait(set, &event, 1, milliseconds, mask);
        else if (!strcmp(call, "epoll_pwait2"))
            n = epoll_pwait2(set, &event, 1, left, mask);
        else
            n = syscall(SYS_epoll_pwait2, set, &event, 1, left, mask, (size_t)8);
        is_right = event.events == EPOLLIN && event.data.u64 == 9;
    }
    if (n < 0)
        return -errno;
    check(n == 0 || (n == 1 && is_right));
    return n;
}

/* Another thread: sends the waiter its signal when that sleeps, and a message behind it if it is asked to. */
static void *sends(void *unused)
{
    for (;;) {
        int what;

        while ((what = asked) == 0)
            nap_us(200);
        if (what < 0)
            return unused;
        until_asleep(&waiter);
        if (what & 1)
            check(syscall(SYS_tgkill, getpid(), waiter, SIGUSR1) == 0);
        if (what & 2) {
            /* Only when it has slept on. */
            if (what & 1)
                until_asleep(&waiter);
            ask('s', 0, 1);
        }
        asked = 0;
    }
}

static int until_done(int answer)
{
    while (asked)
        nap_us(200);
    return answer;
}

static int is_blocked(void)
{
    sigset_t now;

    check(pthread_sigmask(SIG_SETMASK, NULL, &now) == 0);
    return sigismember(&now, SIGUSR1) == 1;
}

static int is_pending(void)
{
    sigset_t now;

    check(sigpending(&now) == 0);
    return sigismember(&now, SIGUSR1) == 1;
}

/* How often the handler has run since this was asked last, ten times; and whether the mask is the one of before. */
static int handled(int blocked)
{
    int times = ran;

    ran = 0;
    return 10 * times + (is_blocked() == blocked);
}

int main(int count, char **words)
{
    struct sigaction action = {.sa_handler = runs};
    const struct timespec none = {0, 0}, one = {0, 1}, some = {0, 300000}, long_one = {3600, 0};
    const struct timespec wrong[] = {{0, 1000000000}, {-1, 0}, {0, -1}};
    int answers[ROUNDS][ANSWERS], invalid[3], is_same = 1, is_set, has_ms, used = 0;
    sigset_t ours, empty;
    pthread_t other;

    check(count == 2);
    call = words[1];
    has_ms = !strcmp(call, "epoll_pwait");
    is_set = strcmp(call, "ppoll") && strcmp(call, "pselect");
    alarm(LIMIT_S);
    sigemptyset(&empty);
    sigemptyset(&ours);
    sigaddset(&ours, SIGUSR1);
    check(sigaction(SIGUSR1, &action, NULL) == 0);
    connect_some(1);
    set = epoll_create1(0);
    add(set, conns[0], EPOLLIN, 9);
    /* The other thread never takes the signal. */
    check(pthread_sigmask(SIG_BLOCK, &ours, NULL) == 0);
    check(pthread_create(&other, NULL, sends, NULL) == 0);
    waiter = (int)syscall(SYS_gettid);
    for (int round = 0; round < ROUNDS; round++) {
        struct message message;
        int *answer = answers[round];

        /* Nothing, for as long as is asked. */
        *answer++ = waits(&none, NULL);
        *answer++ = waits(&one, NULL);
        *answer++ = waits(&some, &empty);
        /* A message, for who sleeps. */
        asked = 2;
        *answer++ = until_done(waits(round % 2 ? NULL : &long_one, round % 3 ? NULL : &ours));
        check(take(conns[0], &message));
        /* Blocked outside, allowed by the mask: interrupts who sleeps ... */
        check(pthread_sigmask(SIG_BLOCK, &ours, NULL) == 0);
        asked = 1;
        *answer++ = until_done(waits(round % 2 ? NULL : &long_one, &empty));
        *answer++ = handled(1);
        /* ... or would, ... */
        check(raise(SIGUSR1) == 0);
        *answer++ = waits(NULL, &empty);
        *answer++ = handled(1);
        /* ... unless a set has something, which comes first. */
        check(raise(SIGUSR1) == 0);
        if (is_set)
            ask('s', 0, 1);
        *answer++ = waits(NULL, &empty) * 10 + is_pending();
        *answer++ = handled(1);
        if (is_set)
            check(take(conns[0], &message));
        /* Allowed outside, then: it comes now. Blocked by the mask: it waits until the call is over. */
        check(pthread_sigmask(SIG_UNBLOCK, &ours, NULL) == 0);
        *answer++ = handled(0);
        asked = 3;
        *answer++ = until_done(waits(round % 2 ? NULL : &long_one, &ours));
        *answer++ = handled(0);
        check(take(conns[0], &message));
        /* No mask: it interrupts. */
        asked = 1;
        *answer++ = until_done(waits(NULL, NULL));
        *answer++ = handled(0);
        used = answer - answers[round];
        is_same &= memcmp(answers[0], answers[round], used * sizeof answers[0][0]) == 0;
        check(pthread_sigmask(SIG_BLOCK, &ours, NULL) == 0);
        ping(0, TRIPS);
    }
    for (int i = 0; i < 3; i++)
        invalid[i] = has_ms ? 0 : waits(&wrong[i], NULL);
    asked = -1;
    check(pthread_join(other, NULL) == 0);
    printf("{\"answers\": [");
    for (int i = 0; i < used; i++)
        printf("%s%d", i ? ", " : "", answers[0][i]);
    printf("], \"same\": %d, \"invalid\": [%d, %d, %d], \"payload\": %d}\n", is_same, invalid[0], invalid[1], invalid[2],
           ROUNDS * (2 * TRIPS + 2 + is_set) * SIZE);
    dismiss();
    return 0;
}
