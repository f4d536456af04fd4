/* Signal handlers: as the program installed them. */
#include "calls.h"

#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <ucontext.h>
#include <unistd.h>

/* Actions are reported back as they were given. */
static void one(int n) { (void)n; }
static void three(int n, siginfo_t *i, void *c) { (void)n, (void)i, (void)c; }

static const char *name_of(void *h) {
    return h == (void *)SIG_DFL ? "default" : h == (void *)SIG_IGN ? "ignore" : h == (void *)one ? "one"
         : h == (void *)three ? "three" : h == (void *)2 ? "hold" : h == (void *)SIG_ERR ? "error" : "other";
}

static void report(int n) {
    struct sigaction a;
    memset(&a, 0x55, sizeof a);
    MUST(sigaction(n, 0, &a));
    uint64_t mask;
    memcpy(&mask, &a.sa_mask, 8);
    printf("%d: %s flags %x mask %lx\n", n, name_of((void *)a.sa_handler), a.sa_flags, mask);
}

int actions(void) {
    report(SIGUSR1);
    struct sigaction a = {.sa_handler = one}, old;
    sigaddset(&a.sa_mask, SIGALRM);
    int flags[] = {0, SA_RESTART, SA_RESETHAND, SA_NODEFER, SA_ONSTACK | SA_RESTART, SA_NOCLDSTOP};
    for (unsigned i = 0; i < sizeof flags / sizeof *flags; i++) {
        a.sa_flags = flags[i];
        a.sa_handler = one;
        MUST(sigaction(SIGUSR1, &a, &old));
        printf("old %s %x\n", name_of((void *)old.sa_handler), old.sa_flags);
        report(SIGUSR1);
        a.sa_flags |= SA_SIGINFO;
        a.sa_sigaction = three;
        MUST(sigaction(SIGUSR1, &a, &old));
        printf("old %s %x\n", name_of((void *)old.sa_handler), old.sa_flags);
        report(SIGUSR1);
        raise(SIGUSR1);
        report(SIGUSR1);
        a.sa_handler = SIG_IGN;
        MUST(sigaction(SIGUSR1, &a, &old));
        report(SIGUSR1);
        a.sa_handler = SIG_DFL;
        struct sigaction *volatile in_place = &a;
        MUST(sigaction(SIGUSR1, in_place, in_place));
        printf("in place %s %x\n", name_of((void *)a.sa_handler), a.sa_flags);
    }
    printf("%s\n", name_of((void *)signal(SIGUSR2, one)));
    report(SIGUSR2);
    printf("%s\n", name_of((void *)signal(SIGUSR2, SIG_IGN)));
    printf("%s\n", name_of((void *)signal(SIGUSR2, SIG_DFL)));
    printf("%s\n", name_of((void *)sysv_signal(SIGUSR2, one)));
    report(SIGUSR2);
    raise(SIGUSR2);
    report(SIGUSR2);
    printf("%s\n", name_of((void *)ssignal(SIGUSR2, one)));
    MUST(siginterrupt(SIGUSR2, 1));
    report(SIGUSR2);
    signal(SIGUSR2, one);
    report(SIGUSR2);
    MUST(siginterrupt(SIGUSR2, 0));
    report(SIGUSR2);
    signal(SIGUSR2, one);
    report(SIGUSR2);
    printf("%s\n", name_of((void *)sigset(SIGUSR2, SIG_HOLD)));
    printf("%s\n", name_of((void *)sigset(SIGUSR2, SIG_HOLD)));
    printf("%s\n", name_of((void *)sigset(SIGUSR2, one)));
    printf("%s\n", name_of((void *)sigset(SIGUSR2, SIG_IGN)));
    report(SIGUSR2);
    system("true");
    report(SIGINT);
    signal(SIGINT, one);
    system("true");
    report(SIGINT);
    struct sigaction rt = {.sa_sigaction = three, .sa_flags = SA_SIGINFO};
    MUST(sigaction(SIGRTMAX, &rt, 0));
    report(SIGRTMAX);
    return 0;
}

/* What a handler sees. */
static volatile sig_atomic_t ran, depth, deepest, details;

static void sees(int n, siginfo_t *info, void *context) {
    uint64_t mask;
    memcpy(&mask, &((ucontext_t *)context)->uc_sigmask, 8);
    sigset_t now;
    sigprocmask(SIG_BLOCK, 0, &now);
    printf("signal %d code %d value %d blocked-before %lx itself %d other %d\n", n, info->si_code,
           n >= SIGRTMIN ? info->si_value.sival_int : 0, mask, sigismember(&now, n), sigismember(&now, SIGALRM));
    ran++;
}

int handlers(void) {
    struct sigaction a = {.sa_sigaction = sees, .sa_flags = SA_SIGINFO};
    sigaddset(&a.sa_mask, SIGALRM);
    MUST(sigaction(SIGUSR1, &a, 0));
    raise(SIGUSR1);
    a.sa_flags |= SA_NODEFER;
    MUST(sigaction(SIGUSR1, &a, 0));
    raise(SIGUSR1);
    int rt = SIGRTMIN + 2;
    MUST(sigaction(rt, &a, 0));
    union sigval v = {.sival_int = 77};
    sigqueue(getpid(), rt, v);
    a.sa_flags |= SA_RESETHAND;
    MUST(sigaction(SIGUSR1, &a, 0));
    raise(SIGUSR1);
    report(SIGUSR1);
    stack_t st = {.ss_sp = malloc(65536), .ss_size = 65536}, was;
    MUST(sigaltstack(&st, 0));
    MUST(sigaltstack(0, &was));
    printf("ran %d stack %d\n", (int)ran, was.ss_sp == st.ss_sp);
    return 0;
}

/* A handler that sends on the connection that it interrupts, many times. */
static int chatty[2];
static volatile long shots;

static void chatters(int n) {
    int e = errno;
    (void)n;
    if (send(chatty[0], "#", 1, MSG_NOSIGNAL) == 1) shots++;
    errno = e;
}

static void *shooter(void *target) {
    for (int i = 0; i < 10000; i++) {
        pthread_kill(*(pthread_t *)target, SIGUSR1);
        if (i % 16 == 0) usleep(10);
    }
    return 0;
}

static volatile long drained[2];
static void *drains(void *unused) {
    char *b = malloc(1 << 16);
    ssize_t n;
    (void)unused;
    while ((n = read(chatty[1], b, 1 << 16)) > 0)
        for (ssize_t i = 0; i < n; i++) drained[b[i] == '#']++;
    return 0;
}

int storm(const char *kind) {
    pair(kind, chatty);
    struct sigaction a = {.sa_handler = chatters, .sa_flags = SA_RESTART};
    MUST(sigaction(SIGUSR1, &a, 0));
    pthread_t me = pthread_self(), t, r;
    sigset_t block;
    sigemptyset(&block);
    sigaddset(&block, SIGUSR1);
    pthread_sigmask(SIG_BLOCK, &block, 0);
    pthread_create(&r, 0, drains, 0);
    pthread_create(&t, 0, shooter, &me);
    pthread_sigmask(SIG_UNBLOCK, &block, 0);
    static char big[65536];
    long sent = 0;
    memset(big, '.', sizeof big);
    while (sent < 64 << 20) {
        ssize_t n = write(chatty[0], big, sizeof big);
        if (n < 0 && errno != EINTR) die("write");
        if (n > 0) sent += n;
    }
    pthread_join(t, 0);
    pthread_sigmask(SIG_BLOCK, &block, 0);
    shutdown(chatty[0], SHUT_WR);
    pthread_join(r, 0);
    sigset_t now;
    sigprocmask(SIG_BLOCK, 0, &now);
    printf("all bytes %d all shots %d some %d\n", drained[0] == sent, drained[1] == shots, shots > 0);
    return 0;
}

/* Signals during reads: nothing lost, nothing doubled; a handler that jumps out. */
static sigjmp_buf out;
static void jumps(int n) { (void)n; siglongjmp(out, 1); }

int jump(const char *kind) {
    int s[2];
    char c;
    pair(kind, s);
    struct sigaction a = {.sa_handler = jumps};
    MUST(sigaction(SIGALRM, &a, 0));
    for (int i = 0; i < 20; i++) {
        struct itimerval t = {{0, 0}, {0, 3000}};
        if (sigsetjmp(out, 1) == 0) {
            setitimer(ITIMER_REAL, &t, 0);
            read(s[0], &c, 1);
            die("read returned");
        }
        if (write(s[1], "x", 1) != 1 || read(s[0], &c, 1) != 1) die("after");
    }
    printf("jumped\n");
    return 0;
}
