/* Signal handlers on a busy connection.
 *
 *   handlers reenter            a handler receives in sends, and sends in receives, 1000 times a second
 *   handlers same               a handler receives in receives of the same connection
 *   handlers jump CALL          siglongjmp out of CALL, many times; nothing is left behind
 *   handlers exit CALL          a thread ends itself in a handler that interrupted CALL
 *   handlers inside CALL        a handler that never returns goes on with the program's work
 *   handlers fork CALL          a handler forks, and the child returns from it into CALL
 *   handlers held               a handler that never returns, in the middle of a message; then a reset
 *   handlers interrupt CALL     SA_RESTART and not, with and without a timeout on the socket, or of a wait
 *   handlers pipe CALL          SIGPIPE: how many, and to whom
 *   handlers timer KIND         bulk both ways under a timer (setitimer, thread, process)
 *   handlers apart KIND         signals that are taken with signalfd or sigwaitinfo
 *   handlers fault              null pointers
 *
 * Prints one line of JSON: what the program saw.
 */
#include "ends.h"

#include <setjmp.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/signalfd.h>
#include <sys/time.h>
#include <sys/uio.h>

#define BIG (8L << 20)

static char *bulk;

static void handle(int signum, void (*handler)(int), int flags)
{
    struct sigaction action = {.sa_handler = handler, .sa_flags = flags};

    check(sigaction(signum, &action, NULL) == 0);
}

/* SIGALRM so often; 0: never. */
static void every_us(long us)
{
    struct itimerval often = {{0, us}, {0, us}};

    check(setitimer(ITIMER_REAL, &often, NULL) == 0);
}

/* ---- handlers that call ---- */

/* So many times a handler has to come in the middle of calls. */
#define TICKS 200

static volatile long by_handler, limit, checksum;
/* How often a handler ran in the middle of a call, and how often it moved bytes there. */
static volatile int runs, moved;
static volatile int may_move = 1;

/* Some of what is left of a direction, up to the limit. */
static void moves(int is_send)
{
    static char room[4096];
    int saved = errno;
    long *at = is_send ? &ours : &theirs, want = limit - *at;
    ssize_t n;

    if (may_move && want > 0) {
        want = want < (long)sizeof room ? want : (long)sizeof room;
        if (is_send) {
            fill(room, *at, want);
            n = send(sock, room, want, MSG_DONTWAIT | MSG_NOSIGNAL);
        } else {
            n = recv(sock, room, want, MSG_DONTWAIT);
        }
        check(n > 0 || (n < 0 && errno == EAGAIN));
        if (n > 0) {
            check(is_send || is_pattern(room, *at, n));
            *at += n;
            moved += is_calling;
        }
    }
    runs += is_calling;
    errno = saved;
}

static void receives(int signum)
{
    (void)signum;
    moves(0);
}

static void sends(int signum)
{
    (void)signum;
    moves(1);
}

static void reenter(void)
{
    connect_to_child();
    for (int turn = 0; turn < 2; turn++) {
        /* What the handler sends fits into a ring: nobody waits for room there. */
        long n = turn ? 512L << 10 : 2L << 20;

        runs = moved = 0;
        limit = turn ? ours : theirs;
        handle(SIGALRM, turn ? sends : receives, SA_RESTART);
        every_us(1000);
        while (runs < TICKS || moved < TICKS / 4) {
            limit += n;
            tell('b', n);
            if (turn) {
                check(receive_pattern(sock, &theirs, n) == n);
            } else {
                send_pattern(sock, &ours, n);
            }
            /* The handler's share may not be done yet: now it has to leave it alone. */
            may_move = 0;
            if (turn) {
                send_pattern(sock, &ours, limit - ours);
            } else {
                check(receive_pattern(sock, &theirs, limit - theirs) >= 0 && theirs == limit);
            }
            answered();
            may_move = 1;
        }
        every_us(0);
    }
    finish();
    puts("{\"fine\": true}");
}

static void sum(const char *from, ssize_t n)
{
    for (ssize_t i = 0; i < n; i++) {
        checksum += (unsigned char)from[i];
    }
}

static void takes_some(int signum)
{
    static char room[3000];
    int saved = errno;
    ssize_t n = recv(sock, room, sizeof room, MSG_DONTWAIT);

    (void)signum;
    check(n > 0 || (n < 0 && errno == EAGAIN));
    if (n > 0) {
        by_handler += n;
        sum(room, n);
        runs += is_calling;
    }
    errno = saved;
}

static void same(void)
{
    static char room[5000];
    long n = 4L << 20, all = 0, got = 0, expected = 0;
    sigset_t block;

    connect_to_child();
    sigemptyset(&block);
    sigaddset(&block, SIGALRM);
    handle(SIGALRM, takes_some, SA_RESTART);
    every_us(300);
    for (; runs < TICKS; answered()) {
        for (long i = all; i < all + n; i++) {
            expected += (unsigned char)pattern(i);
        }
        all += n;
        tell('s', n);
        while (got + by_handler < all) {
            /* The last bytes may be the handler's: a call that waits for them would wait for ever. */
            int flags = all - got - by_handler < 100000 ? MSG_DONTWAIT : 0;
            ssize_t more;

            is_calling = 1;
            more = recv(sock, room, sizeof room, flags);
            is_calling = 0;
            check(more > 0 || (more < 0 && (errno == EINTR || errno == EAGAIN)));
            if (more > 0) {
                sigprocmask(SIG_BLOCK, &block, NULL);
                got += more;
                sum(room, more);
                sigprocmask(SIG_UNBLOCK, &block, NULL);
            }
        }
    }
    every_us(0);
    check(got + by_handler == all && checksum == expected);
    finish();
    puts("{\"fine\": true}");
}

/* ---- handlers that do not come back ---- */

static sigjmp_buf out;
static volatile int may_jump;
static const char *call;
static int set;

static void jumps(int signum)
{
    (void)signum;
    if (may_jump) {
        may_jump = 0;
        siglongjmp(out, 1);
    }
}

static void blocks(void)
{
    struct pollfd entry = {sock, POLLIN, 0};
    struct epoll_event event;
    char byte;
    fd_set bits;

    FD_ZERO(&bits);
    FD_SET(sock, &bits);
    if (!strcmp(call, "recv")) {
        recv(sock, &byte, 1, 0);
    } else if (!strcmp(call, "send")) {
        while (send(sock, bulk, BIG, MSG_NOSIGNAL) > 0) {
        }
    } else if (!strcmp(call, "poll")) {
        poll(&entry, 1, -1);
    } else if (!strcmp(call, "select")) {
        select(sock + 1, &bits, NULL, NULL, NULL);
    } else {
        epoll_wait(set, &event, 1, -1);
    }
}

static void jump(void)
{
    struct epoll_event event = {.events = EPOLLIN};
    static int is_send, rounds, before;

    is_send = !strcmp(call, "send");
    rounds = is_send ? 1 : 100;

    connect_to_child();
    set = epoll_create1(0);
    check(epoll_ctl(set, EPOLL_CTL_ADD, sock, &event) == 0);
    fill(bulk, 0, BIG);
    handle(SIGALRM, jumps, 0);
    for (volatile int i = 0; i < rounds; i++) {
        if (i == 10) {
            before = descriptors();
        }
        if (sigsetjmp(out, 1) == 0) {
            struct itimerval once = {{0, 1000}, {0, 100 + i % 10 * 200}};

            may_jump = 1;
            check(setitimer(ITIMER_REAL, &once, NULL) == 0);
            blocks();
            check(!"the call returned");
        }
        every_us(0);
        if (!is_send) {
            ping(2);
        }
    }
    check(is_send || descriptors() <= before + 1);
    close(set);
    if (is_send) {
        struct answer last;
        int looks = 3000;

        /* On a busy machine what was sent may be on its way. */
        while (!(ask('p', 0).n & POLLIN) && --looks > 0)
            nap_us(10000);
        check(looks > 0);
        close(sock);
        last = ask('r', 1000);
        check(last.n == 1000);
        /* The end comes although a call was left in the middle. What it had sent does not matter. */
        tell('x', 0);
    } else {
        struct answer last;

        ping(500);
        close(sock);
        last = ask('q', 0);
        check(last.n == 0 && last.error == 0);
        tell('x', 0);
    }
    puts("{\"fine\": true}");
}

/* What a send that was left in the middle had sent is a beginning of the pattern. The other direction goes on, and
 * both ends come. */
static void ends_a_piece(void)
{
    struct answer last;
    char byte;

    check(shutdown(sock, SHUT_WR) == 0);
    last = ask('q', 0);
    check(last.n > 0 && last.n < BIG && last.error == 0);
    tell('s', 300000);
    check(receive_pattern(sock, &theirs, 300000) == 300000);
    answered();
    ask('c', 0);
    check(recv(sock, &byte, 1, 0) == 0 && close(sock) == 0);
    dismiss();
}

static atomic_int tid;

static void exits(int signum)
{
    (void)signum;
    pthread_exit((void *)1);
}

static void *blocks_in_thread(void *unused)
{
    tid = thread_id();
    blocks();
    return unused;
}

static void exit_in_handler(void)
{
    struct epoll_event event = {.events = EPOLLIN};
    int before = 0, is_send = !strcmp(call, "send");

    connect_to_child();
    set = epoll_create1(0);
    check(epoll_ctl(set, EPOLL_CTL_ADD, sock, &event) == 0);
    fill(bulk, 0, BIG);
    handle(SIGUSR1, exits, 0);
    for (int i = 0; i < (is_send ? 1 : 30); i++) {
        pthread_t thread;
        void *result;

        tid = 0;
        if (i == 10) {
            before = descriptors();
        }
        check(pthread_create(&thread, NULL, blocks_in_thread, NULL) == 0);
        until_asleep(&tid);
        check(pthread_kill(thread, SIGUSR1) == 0);
        check(pthread_join(thread, &result) == 0 && result == (void *)1);
        if (!is_send) {
            ping(2);
        }
    }
    check(is_send || descriptors() <= before + 1);
    close(set);
    if (is_send) {
        ends_a_piece();
    } else {
        finish();
    }
    puts("{\"fine\": true}");
}

static void finishes_inside(int signum)
{
    (void)signum;
    every_us(0);
    if (!strcmp(call, "send")) {
        ends_a_piece();
    } else {
        ping(300);
        tell('r', 3000000);
        send_pattern(sock, &ours, 3000000);
        check(answered().n == 3000000);
        finish();
    }
    puts("{\"fine\": true}");
    exit(0);
}

static void *shoots(void *target)
{
    until_asleep(&tid);
    check(pthread_kill(*(pthread_t *)target, SIGUSR1) == 0);
    return NULL;
}

static void inside(void)
{
    struct epoll_event event = {.events = EPOLLIN};
    pthread_t self = pthread_self(), helper;

    connect_to_child();
    set = epoll_create1(0);
    check(epoll_ctl(set, EPOLL_CTL_ADD, sock, &event) == 0);
    fill(bulk, 0, BIG);
    handle(SIGUSR1, finishes_inside, SA_RESTART);
    check(pthread_create(&helper, NULL, shoots, &self) == 0);
    tid = thread_id();
    blocks();
    check(!"comes back");
}

static pid_t forked;

static void forks(int signum)
{
    (void)signum;
    forked = fork();
    check(forked >= 0);
}

static void fork_in_handler(void)
{
    struct epoll_event event = {.events = EPOLLIN};
    pthread_t self = pthread_self(), helper;
    int status;

    connect_to_child();
    set = epoll_create1(0);
    check(epoll_ctl(set, EPOLL_CTL_ADD, sock, &event) == 0);
    handle(SIGUSR1, forks, 0);
    check(pthread_create(&helper, NULL, shoots, &self) == 0);
    tid = thread_id();
    errno = 0;
    blocks();
    if (forked == 0) {
        _exit(errno == EINTR ? 7 : 8);
    }
    check(errno == EINTR);
    check(pthread_join(helper, NULL) == 0);
    check(waitpid(forked, &status, 0) == forked);
    check(WIFEXITED(status) && WEXITSTATUS(status) == 7);
    ping(2);
    close(set);
    finish();
    puts("{\"fine\": true}");
}

static atomic_int is_inside;

static void stays(int signum)
{
    (void)signum;
    is_inside = 1;
    for (;;) {
        pause();
    }
}

static atomic_int other_tid;
static int other_error;

static void *sends_too(void *unused)
{
    static char room[100];
    ssize_t n;

    other_tid = thread_id();
    do {
        n = send(sock, room, sizeof room, MSG_NOSIGNAL);
    } while (n > 0);
    other_error = errno;
    return unused;
}

static void held(void)
{
    pthread_t holder, other;

    connect_to_child();
    fill(bulk, 0, BIG);
    handle(SIGUSR1, stays, 0);
    check(pthread_create(&holder, NULL, blocks_in_thread, NULL) == 0);
    until_asleep(&tid);
    check(pthread_kill(holder, SIGUSR1) == 0);
    while (!is_inside) {
        nap_us(1000);
    }
    /* There is no room, so this one waits too, whoever's turn it is. */
    check(pthread_create(&other, NULL, sends_too, NULL) == 0);
    until_asleep(&other_tid);
    /* It ends with bytes unread, which is a reset. */
    tell('x', 0);
    check(pthread_join(other, NULL) == 0);
    printf("{\"told\": %s}\n", other_error == ECONNRESET || other_error == EPIPE ? "true" : "false");
    fflush(stdout);
    _exit(0);
}

/* ---- interruptions ---- */

static volatile int shots, release_at, is_released;

static void shot(int signum)
{
    int saved = errno;

    (void)signum;
    shots++;
    if (release_at && shots >= release_at && !is_released) {
        struct order order = {!strcmp(call, "send") ? 'r' : 's', !strcmp(call, "send") ? BIG : 5};

        is_released = 1;
        check(send(line, &order, sizeof order, MSG_NOSIGNAL) == sizeof order);
    }
    errno = saved;
}

static int limit_ms, comes_later;

static int is_wait(void)
{
    return !strcmp(call, "poll") || !strcmp(call, "ppoll") || !strcmp(call, "select") || !strcmp(call, "pselect")
           || !strncmp(call, "epoll", 5);
}

/* One wait for the connection, without a limit of time if that is 0. */
static int waits(void)
{
    struct pollfd entry = {sock, POLLIN, 0};
    struct epoll_event event;
    struct timespec limit = {limit_ms / 1000, limit_ms % 1000 * 1000000L}, *until = limit_ms ? &limit : NULL;
    struct timeval coarse = {limit_ms / 1000, limit_ms % 1000 * 1000};
    fd_set bits;

    FD_ZERO(&bits);
    FD_SET(sock, &bits);
    if (!strcmp(call, "poll")) {
        return poll(&entry, 1, limit_ms ? limit_ms : -1);
    } else if (!strcmp(call, "ppoll")) {
        return ppoll(&entry, 1, until, NULL);
    } else if (!strcmp(call, "select")) {
        return select(sock + 1, &bits, NULL, NULL, limit_ms ? &coarse : NULL);
    } else if (!strcmp(call, "pselect")) {
        return pselect(sock + 1, &bits, NULL, NULL, until, NULL);
    } else if (!strcmp(call, "epoll_wait")) {
        return epoll_wait(set, &event, 1, limit_ms ? limit_ms : -1);
    } else if (!strcmp(call, "epoll_pwait")) {
        return epoll_pwait(set, &event, 1, limit_ms ? limit_ms : -1, NULL);
    }
    return epoll_pwait2(set, &event, 1, until, NULL);
}

static int is_send(void)
{
    return !strcmp(call, "send");
}

/* What a call that cannot go on says in the end; calls that did a part of it are repeated. */
static const char *outcome(void)
{
    char room[10];
    ssize_t n = 1;
    long done = 0;
    int pieces = 0;

    if (is_wait()) {
        /* Signals never restart these. The caller does, where the bytes are to come: behind a next signal. */
        while ((n = waits()) < 0 && errno == EINTR && comes_later) {
            if (pieces++ == 0) {
                release_at = shots + 1;
            }
        }
        return n < 0 ? strerrorname_np(errno) : n == 0 ? "nothing" : pieces ? "ready again" : "ready";
    }
    if (!is_send()) {
        n = recv(sock, room, sizeof room, strcmp(call, "waitall") ? 0 : MSG_WAITALL);
        return n < 0 ? strerrorname_np(errno) : n == 5 ? "part" : "bytes";
    }
    while (n > 0 && done < BIG) {
        n = send(sock, bulk + done, BIG - done, MSG_NOSIGNAL);
        done += n > 0 ? n : 0;
        pieces++;
    }
    return n < 0 ? strerrorname_np(errno) : pieces > 1 ? "all in parts" : "all";
}

static void interrupt_case(int flags, int timeout_ms, int with_signals, int release)
{
    struct timeval limit_of_call = {timeout_ms / 1000, timeout_ms % 1000 * 1000};
    struct epoll_event event = {.events = EPOLLIN};
    const char *seen;

    connect_to_child();
    set = epoll_create1(0);
    check(epoll_ctl(set, EPOLL_CTL_ADD, sock, &event) == 0);
    limit_ms = timeout_ms;
    if (timeout_ms && !is_wait()) {
        check(setsockopt(sock, SOL_SOCKET, is_send() ? SO_SNDTIMEO : SO_RCVTIMEO, &limit_of_call,
                         sizeof limit_of_call) == 0);
    }
    shots = is_released = 0;
    comes_later = release != 0;
    release_at = is_wait() ? 0 : release;
    handle(SIGALRM, shot, flags);
    if (with_signals) {
        every_us(30000);
    }
    fill(bulk, 0, BIG);
    seen = outcome();
    every_us(0);
    printf("%s\"%s%s%s\": \"%s\"", flags || timeout_ms || !with_signals ? ", " : "",
           flags ? "restart" : "return", timeout_ms ? " timeout" : "", with_signals ? "" : " alone", seen);
    if (release) {
        answered();
    }
    close(set);
    close(sock);
    tell('x', 0);
    close(line);
    waitpid(child, NULL, 0);
}

static void interrupt(void)
{
    small = 100000;
    printf("{");
    interrupt_case(0, 0, 1, 0);
    interrupt_case(0, 20000, 1, 0);
    interrupt_case(SA_RESTART, 20000, 1, 0);
    interrupt_case(SA_RESTART, 0, 1, 5);
    interrupt_case(0, 100, 0, 0);
    printf("}\n");
}

#include "pipes.h"

/* ---- timers and bulk ---- */

static void counts(int signum)
{
    (void)signum;
    runs += is_calling;
}

static void *sends_bulk(void *n)
{
    send_pattern(sock, &ours, *(long *)n);
    return n;
}

static void *receives_bulk(void *n)
{
    check(receive_pattern(sock, &theirs, *(long *)n) == *(long *)n);
    return n;
}

/* The process's timers interrupt its first thread, which receives until that has come often enough, and then sends. */
static void timer(const char *kind)
{
    long n = 4L << 20;
    pthread_t thread;
    timer_t id;
    struct itimerspec often = {{0, 1000000}, {0, 1000000}}, never = {{0, 0}, {0, 0}};
    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGRTMIN + 1};

    connect_to_child();
    handle(SIGALRM, counts, 0);
    handle(SIGRTMIN + 1, counts, SA_RESTART);
    if (!strcmp(kind, "setitimer")) {
        every_us(1000);
    } else {
        if (!strcmp(kind, "thread")) {
            event.sigev_notify = SIGEV_THREAD_ID;
            event._sigev_un._tid = thread_id();
        }
        check(timer_create(CLOCK_MONOTONIC, &event, &id) == 0);
        check(timer_settime(id, 0, &often, NULL) == 0);
    }
    for (int turn = 0; turn < 2; turn++) {
        for (runs = 0; runs < TICKS; answered()) {
            tell('b', n);
            check(pthread_create(&thread, NULL, turn ? receives_bulk : sends_bulk, &n) == 0);
            (turn ? sends_bulk : receives_bulk)(&n);
            check(pthread_join(thread, NULL) == 0);
        }
    }
    if (!strcmp(kind, "setitimer")) {
        every_us(0);
    } else {
        check(timer_settime(id, 0, &never, NULL) == 0 && timer_delete(id) == 0);
    }
    finish();
    puts("{\"fine\": true}");
}

/* ---- signals that no handler takes ---- */

#define QUEUED 300

static const char *how_apart;

static void *takes_signals(void *unused)
{
    sigset_t wanted;
    int from = -1;

    sigemptyset(&wanted);
    sigaddset(&wanted, SIGRTMIN + 2);
    if (!strcmp(how_apart, "signalfd")) {
        from = signalfd(-1, &wanted, 0);
        check(from >= 0);
    }
    for (int i = 0; i < QUEUED; i++) {
        if (from >= 0) {
            struct signalfd_siginfo info;

            check(read(from, &info, sizeof info) == sizeof info);
            check((int)info.ssi_int == i && info.ssi_code == SI_QUEUE);
        } else {
            siginfo_t info;
            int n;

            while ((n = sigwaitinfo(&wanted, &info)) < 0 && errno == EINTR) {
            }
            check(n == SIGRTMIN + 2 && info.si_value.sival_int == i && info.si_code == SI_QUEUE);
        }
    }
    return unused;
}

static void apart(void)
{
    sigset_t wanted;
    pthread_t taker, sender;
    long n = 16L << 20;

    connect_to_child();
    sigemptyset(&wanted);
    sigaddset(&wanted, SIGRTMIN + 2);
    check(pthread_sigmask(SIG_BLOCK, &wanted, NULL) == 0);
    handle(SIGALRM, counts, SA_RESTART);
    every_us(1000);
    check(pthread_create(&taker, NULL, takes_signals, NULL) == 0);
    tell('b', n);
    check(pthread_create(&sender, NULL, sends_bulk, &n) == 0);
    for (int i = 0; i < QUEUED; i++) {
        union sigval value = {.sival_int = i};

        while (sigqueue(getpid(), SIGRTMIN + 2, value) < 0) {
            check(errno == EAGAIN);
            nap_us(1000);
        }
        check(receive_pattern(sock, &theirs, n / QUEUED) == n / QUEUED);
    }
    check(receive_pattern(sock, &theirs, n % QUEUED) == n % QUEUED);
    check(pthread_join(taker, NULL) == 0 && pthread_join(sender, NULL) == 0);
    every_us(0);
    answered();
    finish();
    puts("{\"fine\": true}");
}

/* ---- null pointers ---- */

static const char *name(ssize_t n)
{
    return n < 0 ? strerrorname_np(errno) : "fine";
}

static void fault(void)
{
    struct iovec null = {NULL, 10};
    struct msghdr message = {.msg_iov = &null, .msg_iovlen = 1};
    char room[5];
    char *volatile nowhere = NULL;

    connect_to_child();
    ask('s', 5);
    printf("{\"recv\": \"%s\"", name(recv(sock, nowhere, 10, 0)));
    printf(", \"read\": \"%s\"", name(read(sock, nowhere, 10)));
    printf(", \"readv\": \"%s\"", name(readv(sock, &null, 1)));
    printf(", \"recvmsg\": \"%s\"", name(recvmsg(sock, &message, 0)));
    printf(", \"no header\": \"%s\"", name(recvmsg(sock, (struct msghdr *)nowhere, 0)));
    printf(", \"send\": \"%s\"", name(send(sock, nowhere, 10, MSG_NOSIGNAL)));
    printf(", \"write\": \"%s\"", name(write(sock, nowhere, 10)));
    printf(", \"writev\": \"%s\"", name(writev(sock, &null, 1)));
    printf(", \"sendmsg\": \"%s\"", name(sendmsg(sock, &message, MSG_NOSIGNAL)));
    printf(", \"no vector\": \"%s\"", name(writev(sock, (struct iovec *)nowhere, 1)));
    printf(", \"poll\": \"%s\"", name(poll((struct pollfd *)nowhere, 1, 0)));
    printf(", \"epoll\": \"%s\"", name(epoll_wait(set, (struct epoll_event *)nowhere, 1, 0)));
    check(recv(sock, room, sizeof room, MSG_WAITALL) == 5 && is_pattern(room, 0, 5));
    printf(", \"fine\": true}\n");
    finish();
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "";

    signal(SIGPIPE, SIG_IGN);
    bulk = malloc(BIG);
    check(bulk);
    call = argc > 2 ? argv[2] : "";
    if (!strcmp(what, "reenter")) {
        reenter();
    } else if (!strcmp(what, "same")) {
        same();
    } else if (!strcmp(what, "jump")) {
        jump();
    } else if (!strcmp(what, "exit")) {
        exit_in_handler();
    } else if (!strcmp(what, "inside")) {
        inside();
    } else if (!strcmp(what, "fork")) {
        fork_in_handler();
    } else if (!strcmp(what, "held")) {
        call = "send";
        held();
    } else if (!strcmp(what, "interrupt")) {
        interrupt();
    } else if (!strcmp(what, "pipe") && argc > 2) {
        broken_pipe(argv[2]);
    } else if (!strcmp(what, "timer")) {
        timer(call);
    } else if (!strcmp(what, "apart")) {
        how_apart = call;
        apart();
    } else if (!strcmp(what, "fault")) {
        set = epoll_create1(0);
        fault();
    } else {
        return 2;
    }
    return 0;
}
