/* epoll sets that several threads use, that hold other descriptors too, or that ask for special things.
 *
 *   sets burst WAY              as many messages at once as threads sleep on the set: each thread gets one
 *   sets flow WAY RACE          threads answer messages while another one changes the set: nothing is missed
 *   sets renames HOW            the thread that has an event gives its connection other data: nothing comes under the old
 *   sets alike WHAT             several have the same data, one after the other or at a time: a thread that sleeps is told of all
 *   sets overwritten            the program uses a number that it finds in the kernel's list of the set and is not its own
 *   sets rotation MAX WAY WHAT  connections that are not read, alone or beside a pipe, all ready: who comes when
 *   sets beside MAX WAY         a timer, a pipe and a listener beside a connection that is never read to its end
 *   sets exclusive WHAT WAY     EPOLLEXCLUSIVE: refused, late, twice, listeners
 *   sets hangup BITS END UNREAD the bits that a set shows when the peer ends its half, or all
 *
 * WAY: level, edge, once. Prints one line of JSON: what the program saw. What is not the kernel's to choose is
 * checked here instead. "payload" is what both ends together should have received after the warm-up, in bytes.
 */
#include "sets.h"

#include <sys/timerfd.h>

#define THREADS 4

static int set, stop;
static uint32_t way;
static atomic_int slept, empty, twice;

/* ---- threads ---- */

/* The next event of a set, for one of its threads: whose it is. MOST: it is time to stop; that none came is noted. */
static int next_of(int own, struct epoll_event *event)
{
    int n = epoll_wait(own, event, 1, PATIENCE_MS);

    if (n == 0) {
        slept++;
        return MOST;
    }
    check(n == 1);
    return event->data.u64;
}

#define BURSTS 60

static atomic_int picked;

/* Takes one message of each burst, and waits for the next burst until all threads have one. */
static void *takes_one(void *unused)
{
    struct epoll_event event;
    struct message message;

    for (int burst = 0; burst < BURSTS;) {
        int which = next_of(set, &event);

        if (which == MOST)
            return unused;
        check(event.events == EPOLLIN);
        if (recv(conns[which], &message, SIZE, MSG_DONTWAIT) < 0) {
            /* Level-triggered: another thread was faster. One edge too many does no harm. With ONESHOT it is counted. */
            check(errno == EAGAIN);
            empty++;
            continue;
        }
        check(is_made(&message) && message.which == which && message.place == 0);
        if (way & EPOLLONESHOT)
            modify(set, conns[which], EPOLLIN | way, which);
        picked++;
        burst++;
        for (int naps = 0; picked < burst * THREADS; naps++) {
            if (naps == PATIENCE_MS) {
                /* Somebody sleeps over a message. */
                slept++;
                check(write(stop, (uint64_t[]){1}, 8) == 8);
                return unused;
            }
            nap_us(naps < 100 ? 50 : 1000);
        }
    }
    return unused;
}

static void burst(void)
{
    pthread_t threads[THREADS];

    connect_some(THREADS);
    for (int i = 0; i < THREADS; i++)
        add(set, conns[i], EPOLLIN | way, i);
    for (int i = 0; i < THREADS; i++)
        check(pthread_create(&threads[i], NULL, takes_one, NULL) == 0);
    for (int burst = 0; burst < BURSTS && !slept; burst++) {
        for (int i = 0; i < THREADS; i++)
            tell('s', i, 1);
        for (int i = 0; i < THREADS; i++)
            answered();
        while (picked < (burst + 1) * THREADS && !slept)
            nap_us(100);
    }
    for (int i = 0; i < THREADS; i++)
        check(pthread_join(threads[i], NULL) == 0);
    printf("{\"picked\": %d, \"slept\": %d, \"empty\": %d, \"payload\": %d}\n", picked, slept,
           way & EPOLLONESHOT ? (int)empty : 0, BURSTS * THREADS * SIZE);
    dismiss();
}

#define FLOWS 6
#define TIMES 100
/* Those of them that a race closes. */
#define CLOSED 2

static atomic_int places[FLOWS], used[FLOWS], is_closed[FLOWS], ends, is_over;
static int expected = FLOWS;
static const char *race;

/* Answers what there is on a connection. 0: it was the end; −1: there was nothing. */
static int answers(int which)
{
    for (;;) {
        struct message message;
        ssize_t n = recv(conns[which], &message, SIZE, MSG_DONTWAIT);
        int place;

        if (n <= 0) {
            check(n == 0 || errno == EAGAIN || is_closed[which]);
            return n < 0 ? -1 : 0;
        }
        check(n == SIZE && is_made(&message) && message.which == which);
        place = places[which]++;
        twice += place != message.place;
        check(send(conns[which], &message, SIZE, MSG_NOSIGNAL) == SIZE || is_closed[which]);
        if (way != EPOLLET)
            return 1;
    }
}

static void *answers_all(void *unused)
{
    for (;;) {
        struct epoll_event event;
        int which = next_of(set, &event), what;

        if (which == MOST)
            return unused;
        /* One event of a registration with ONESHOT is one thread's, and there is something behind it. */
        if (way & EPOLLONESHOT)
            twice += used[which]++ != 0;
        what = answers(which);
        if (way & EPOLLONESHOT) {
            empty += what < 0 && !is_closed[which];
            used[which]--;
        }
        if (what == 0) {
            /* Once for each connection, whoever else sees it. */
            if (epoll_ctl(set, EPOLL_CTL_DEL, conns[which], &event) == 0 && ++ends == expected)
                check(write(stop, (uint64_t[]){1}, 8) == 8);
        } else if (way & EPOLLONESHOT && !is_closed[which]) {
            struct epoll_event again = {.events = EPOLLIN | way, .data.u64 = which};

            check(epoll_ctl(set, EPOLL_CTL_MOD, conns[which], &again) == 0 || is_closed[which]);
        }
    }
}

/* Changes registrations, or closes some connections, while the threads wait and answer. */
static void *races(void *unused)
{
    unsigned seed = 1;

    while (!is_over) {
        int which = rand_r(&seed) % FLOWS;
        struct epoll_event event = {.events = EPOLLIN | way, .data.u64 = which};

        if (!strcmp(race, "modify")) {
            check(epoll_ctl(set, EPOLL_CTL_MOD, conns[which], &event) == 0);
        } else if (!strcmp(race, "remove")) {
            check(epoll_ctl(set, EPOLL_CTL_DEL, conns[which], &event) == 0);
            nap_us(rand_r(&seed) % 2 * 100);
            check(epoll_ctl(set, EPOLL_CTL_ADD, conns[which], &event) == 0);
        } else {
            /* In the middle of what is said. */
            for (int i = 0; i < CLOSED; i++) {
                while (places[i] < TIMES / 2)
                    nap_us(100);
                is_closed[i] = 1;
                check(close(conns[i]) == 0);
            }
            return unused;
        }
        nap_us(200);
    }
    return unused;
}

static void flow(void)
{
    int closed = strcmp(race, "close") ? 0 : CLOSED, has_race = strcmp(race, "none") != 0, done = 0;
    pthread_t threads[THREADS], racer;

    expected = FLOWS - closed;
    connect_some(FLOWS);
    for (int i = 0; i < FLOWS; i++)
        add(set, conns[i], EPOLLIN | way, i);
    for (int i = 0; i < THREADS; i++)
        check(pthread_create(&threads[i], NULL, answers_all, NULL) == 0);
    if (has_race)
        check(pthread_create(&racer, NULL, races, NULL) == 0);
    ask('v', FLOWS, TIMES);
    is_over = 1;
    if (has_race)
        check(pthread_join(racer, NULL) == 0);
    for (int i = closed; i < FLOWS; i++)
        ask('c', i, 0);
    for (int i = 0; i < THREADS; i++)
        check(pthread_join(threads[i], NULL) == 0);
    for (int i = closed; i < FLOWS; i++)
        done += places[i];
    printf("{\"answered\": %d, \"ends\": %d, \"twice\": %d, \"slept\": %d, \"empty\": %d, \"payload\": %d}\n", done, ends,
           twice, slept, empty, 2 * done * SIZE);
    dismiss();
}

/* All data that connections have or had: the number of a connection, or that plus a multiple of FLOWS. Begins behind MOST. */
#define NAMES (FLOWS * (TIMES + 2))

static atomic_char in_use[MOST + 1 + NAMES];
static atomic_int stale;

/* Answers one message for each event, and then the registration, which is this thread's alone, gets other data: by one call
 * that changes it, or it is removed and made anew. */
static void *renames_each(void *unused)
{
    for (;;) {
        struct epoll_event event, again = {.events = EPOLLIN | way};
        uint64_t name = next_of(set, &event);
        int which, what;

        if (name == MOST)
            return unused;
        check(event.events == EPOLLIN);
        if (!in_use[name]) {
            stale++;
            continue;
        }
        which = (name - MOST - 1) % FLOWS;
        twice += used[which]++ != 0;
        what = answers(which);
        empty += what < 0;
        used[which]--;
        in_use[name] = 0;
        again.data.u64 = name + FLOWS;
        if (what == 0 || strcmp(race, "modify"))
            check(epoll_ctl(set, EPOLL_CTL_DEL, conns[which], &event) == 0);
        if (what == 0) {
            if (++ends == FLOWS)
                check(write(stop, (uint64_t[]){1}, 8) == 8);
            continue;
        }
        check(again.data.u64 < MOST + 1 + NAMES);
        in_use[again.data.u64] = 1;
        check(epoll_ctl(set, strcmp(race, "modify") ? EPOLL_CTL_ADD : EPOLL_CTL_MOD, conns[which], &again) == 0);
    }
}

static void renames(void)
{
    pthread_t threads[THREADS];

    connect_some(FLOWS);
    for (int i = 0; i < FLOWS; i++) {
        in_use[MOST + 1 + i] = 1;
        add(set, conns[i], EPOLLIN | way, MOST + 1 + i);
    }
    for (int i = 0; i < THREADS; i++)
        check(pthread_create(&threads[i], NULL, renames_each, NULL) == 0);
    ask('v', FLOWS, TIMES);
    for (int i = 0; i < FLOWS; i++)
        ask('c', i, 0);
    for (int i = 0; i < THREADS; i++)
        check(pthread_join(threads[i], NULL) == 0);
    printf("{\"ends\": %d, \"stale\": %d, \"twice\": %d, \"slept\": %d, \"empty\": %d, \"payload\": %d}\n", ends, stale, twice,
           slept, empty, 2 * FLOWS * TIMES * SIZE);
    dismiss();
}

static atomic_int told, sleeper;

/* Counts what it is told until it is told of everything, or of nothing for long. */
static void *counts(void *all)
{
    struct epoll_event event;

    sleeper = thread_id();
    while (told < *(int *)all && next_of(set, &event) != MOST)
        told++;
    return all;
}

/* Two ends of a connection that has moved nothing. */
static void pair(int ends[2])
{
    struct sockaddr_in address;
    int hear = loopback_listener(&address);

    ends[0] = socket(AF_INET, SOCK_STREAM, 0);
    check(connect(ends[0], (struct sockaddr *)&address, sizeof address) == 0);
    ends[1] = accept(hear, NULL, NULL);
    check(ends[1] >= 0);
    close(hear);
}

static void until_told(int times)
{
    for (int naps = 0; told < times && naps < PATIENCE_MS && !slept; naps++)
        nap_us(1000);
    until_asleep(&sleeper);
}

/* Nothing of the set is on a lane. */
static void alike_young(void)
{
    int ends[3][2], pipes[2], all = 3;
    pthread_t thread;

    for (int i = 0; i < 3; i++)
        pair(ends[i]);
    check(pipe(pipes) == 0);
    add(set, ends[0][0], EPOLLIN | EPOLLONESHOT, 7);
    add(set, ends[1][0], EPOLLIN | EPOLLONESHOT, 7);
    add(set, ends[2][0], EPOLLIN | EPOLLONESHOT, 9);
    add(set, pipes[0], EPOLLIN | EPOLLET, 9);
    check(pthread_create(&thread, NULL, counts, &all) == 0);
    until_told(0);
    check(send(ends[0][1], "x", 1, 0) == 1);
    until_told(1);
    /* What has nothing to do with the other two. */
    check(epoll_ctl(set, EPOLL_CTL_DEL, ends[2][0], NULL) == 0);
    check(send(ends[1][1], "x", 1, 0) == 1);
    until_told(2);
    check(write(pipes[1], "x", 1) == 1);
    check(pthread_join(thread, NULL) == 0);
}

/* A connection on a lane is closed, and a pipe gets its number and its data; by turns one that carries the bell of the set and
 * one that does not. */
static void alike_heirs(void)
{
    int pipes[FLOWS][2], all = FLOWS;
    pthread_t thread;

    connect_some(FLOWS);
    for (int i = 0; i < FLOWS; i++) {
        check(pipe(pipes[i]) == 0);
        add(set, conns[i], EPOLLIN | EPOLLONESHOT, MOST + conns[i]);
    }
    check(pthread_create(&thread, NULL, counts, &all) == 0);
    for (int i = 0; i < FLOWS; i++) {
        int which = i % 2 ? FLOWS - 1 - i / 2 : i / 2;

        until_told(i);
        check(close(conns[which]) == 0);
        check(dup2(pipes[i][0], conns[which]) == conns[which]);
        add(set, conns[which], EPOLLIN | EPOLLET, MOST + conns[which]);
        check(write(pipes[i][1], "x", 1) == 1);
    }
    check(pthread_join(thread, NULL) == 0);
    dismiss();
}

static void alike(const char *what)
{
    if (!strcmp(what, "young"))
        alike_young();
    else
        alike_heirs();
    printf("{\"told\": %d, \"slept\": %d}\n", told, slept);
}

/* How many descriptors the kernel knows in the set, and the number of one that is neither `stop` nor a connection, or -1. */
static int known(int *other)
{
    char path[64], text[256];
    int count = 0, fd;
    FILE *file;

    *other = -1;
    snprintf(path, sizeof path, "/proc/self/fdinfo/%d", set);
    file = fopen(path, "r");
    check(file);
    while (fgets(text, sizeof text, file)) {
        if (sscanf(text, "tfd: %d", &fd) != 1)
            continue;
        count++;
        if (fd != stop && fd != conns[0])
            *other = fd;
    }
    fclose(file);
    return count;
}

static void overwritten(void)
{
    struct epoll_event event;
    struct message message;
    int before, hidden, other;

    connect_some(1);
    add(set, conns[0], EPOLLIN, 0);
    before = known(&hidden);
    if (hidden >= 0)
        check(dup2(0, hidden) == hidden);
    for (int i = 0; i < TIMES; i++) {
        tell('s', 0, 1);
        check(epoll_wait(set, &event, 1, PATIENCE_MS) == 1 && event.events == EPOLLIN && event.data.u64 == 0);
        check(take(conns[0], &message));
        answered();
    }
    check(known(&other) == before && (hidden < 0 || other != hidden));
    printf("{\"overwritten\": %d, \"payload\": %d}\n", hidden >= 0, TIMES * SIZE);
    dismiss();
}

/* ---- one thread, who is served when ---- */

#define READY 4
#define CALLS 200
/* Messages that wait on each connection. */
#define MANY 10
#define ROUNDS 20
/* Of the library's waits so many at most bring nothing of the kernel, if something else is ready. */
#define WAITS 16

static int pipes[2];

/* Level-triggered: the most calls between two in which the set names this descriptor. */
static void rotates(int max, int members)
{
    int last[READY + 1] = {0}, longest = 0;
    struct epoll_event events[READY + 1];

    for (int call = 1; call <= CALLS; call++) {
        int n = epoll_wait(set, events, max, PATIENCE_MS);

        check(n > 0 && n <= max);
        for (int i = 0; i < n; i++) {
            check(events[i].events == EPOLLIN);
            last[events[i].data.u64] = call;
        }
        for (int i = 0; i < members; i++)
            longest = call - last[i] > longest ? call - last[i] : longest;
    }
    printf("{\"longest\": %d, ", longest);
}

/* Otherwise each is named for its message, and with ONESHOT no second time. */
static void names_each(int max, int members)
{
    int named[READY + 1] = {0}, all = 0;
    struct epoll_event events[READY + 1];

    for (int after = 0, calls = 0; after < WAITS; after += all == members) {
        int n = epoll_wait(set, events, max, 0);

        check(n >= 0 && n <= max && ++calls < CALLS);
        for (int i = 0; i < n; i++) {
            int times = ++named[events[i].data.u64];

            /* One edge too many does no harm. */
            check(events[i].events == EPOLLIN && (times == 1 || way == EPOLLET));
            all += times == 1;
        }
    }
}

static void rotation(int max, int has_pipe)
{
    struct message message;
    int members = READY + has_pipe;
    char byte;

    connect_some(READY);
    check(pipe(pipes) == 0);
    for (int i = 0; i < READY; i++)
        add(set, conns[i], EPOLLIN | way, i);
    if (has_pipe)
        add(set, pipes[0], EPOLLIN | way, READY);
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < READY; i++)
            ask('s', i, MANY);
        for (int i = 0; i < READY; i++) {
            struct pollfd entry = {conns[i], POLLIN, 0};

            check(poll(&entry, 1, PATIENCE_MS) == 1);
        }
        check(write(pipes[1], "x", 1) == 1);
        if (way)
            names_each(max, members);
        else if (round == 0)
            rotates(max, members);
        for (int i = 0; i < READY * MANY; i++)
            check(take(conns[i / MANY], &message) && message.which == i / MANY && message.place == i % MANY);
        check(read(pipes[0], &byte, 1) == 1);
        check(way || epoll_wait(set, &(struct epoll_event){0}, 1, 0) == 0);
        for (int i = 0; i < members && way & EPOLLONESHOT; i++)
            modify(set, i < READY ? conns[i] : pipes[0], EPOLLIN | way, i);
    }
    printf("%s\"payload\": %d}\n", way ? "{" : "", ROUNDS * READY * MANY * SIZE);
    dismiss();
}

/* Kernel descriptors, each with a way to make it ready and one to take what it has. */
static int timer, hear, caller;
static struct sockaddr_in address;

static int begin(int which)
{
    struct itimerspec soon = {.it_value.tv_nsec = 1};

    switch (which) {
    case 0:
        check(timerfd_settime(timer, 0, &soon, NULL) == 0);
        return timer;
    case 1:
        check(write(pipes[1], "x", 1) == 1);
        return pipes[0];
    default:
        caller = socket(AF_INET, SOCK_STREAM, 0);
        check(connect(caller, (struct sockaddr *)&address, sizeof address) == 0);
        return hear;
    }
}

static void end(int which)
{
    char room[8];
    int fd;

    switch (which) {
    case 0:
        check(read(timer, room, 8) == 8);
        break;
    case 1:
        check(read(pipes[0], room, 1) == 1);
        break;
    default:
        fd = accept(hear, NULL, NULL);
        check(fd >= 0 && close(fd) == 0 && close(caller) == 0);
    }
}

/* How many calls at most until the set names a descriptor that is ready, beside a connection that always has more. */
static void beside(int max)
{
    int longest = 0, messages = 0;
    struct epoll_event events[8];
    struct message message;

    connect_some(1);
    check(pipe(pipes) == 0);
    timer = timerfd_create(CLOCK_MONOTONIC, 0);
    hear = loopback_listener(&address);
    add(set, conns[0], EPOLLIN | way, MOST);
    add(set, timer, EPOLLIN | way, 0);
    add(set, pipes[0], EPOLLIN | way, 1);
    add(set, hear, EPOLLIN | way, 2);
    ask('s', 0, 2);
    for (int round = 0; round < 3 * ROUNDS; round++) {
        int which = round % 3, calls = 0, is_named = 0;
        struct pollfd entry = {begin(which), POLLIN, 0};

        check(poll(&entry, 1, PATIENCE_MS) == 1);
        while (!is_named) {
            int n = epoll_wait(set, events, max, PATIENCE_MS);

            check(n > 0 && ++calls < CALLS);
            for (int i = 0; i < n; i++) {
                check(events[i].events == EPOLLIN);
                if (events[i].data.u64 == MOST) {
                    /* There is one more behind it, and again something new. */
                    check(take(conns[0], &message));
                    ask('s', 0, 1);
                    messages++;
                } else {
                    check(events[i].data.u64 == (uint64_t)which && !is_named);
                    is_named = 1;
                }
            }
        }
        end(which);
        longest = calls > longest ? calls : longest;
    }
    /* What the connection has carried beside them is up to the number of calls: some more of it. */
    check(take(conns[0], &message) && take(conns[0], &message));
    ping(0, CALLS);
    printf("{\"longest\": %d, \"payload\": %d}\n", longest, 2 * CALLS * SIZE);
    dismiss();
}

/* ---- EPOLLEXCLUSIVE ---- */

static int refusal(int op, uint32_t events)
{
    struct epoll_event event = {.events = events};

    return epoll_ctl(set, op, conns[0], &event) == 0 ? 0 : errno;
}

/* Messages, one after the other, for whoever sleeps on one of the sets. */
static int others;
static atomic_int handled;

static void *handles(void *number)
{
    int own = number ? others : set;

    for (;;) {
        struct epoll_event event;
        struct message message;

        if (next_of(own, &event) == MOST)
            return NULL;
        check(event.events == EPOLLIN);
        if (recv(conns[0], &message, SIZE, MSG_DONTWAIT) < 0) {
            check(errno == EAGAIN);
            continue;
        }
        check(is_made(&message));
        handled++;
        give(conns[0], 0, message.place);
    }
}

/* What the kernel refuses changes nothing. */
static void exclusive_refused(void)
{
    int errors[6];

    connect_some(1);
    errors[0] = refusal(EPOLL_CTL_ADD, EPOLLIN | EPOLLEXCLUSIVE | EPOLLONESHOT);
    errors[1] = refusal(EPOLL_CTL_ADD, EPOLLIN | EPOLLEXCLUSIVE | EPOLLRDHUP);
    errors[2] = refusal(EPOLL_CTL_MOD, EPOLLIN | EPOLLEXCLUSIVE);
    errors[3] = refusal(EPOLL_CTL_ADD, EPOLLIN);
    errors[4] = refusal(EPOLL_CTL_ADD, EPOLLIN | EPOLLEXCLUSIVE);
    errors[5] = refusal(EPOLL_CTL_MOD, EPOLLIN | EPOLLEXCLUSIVE);
    ping(0, TIMES);
    printf("{\"errors\": [%d, %d, %d, %d, %d, %d], ", errors[0], errors[1], errors[2], errors[3], errors[4], errors[5]);
}

/* Asked for when the connection is on its lane: each message is told once, and so is the end. */
static void exclusive_late(void)
{
    struct epoll_event event;
    int right = 0, then;

    connect_some(1);
    add(set, conns[0], EPOLLIN | EPOLLEXCLUSIVE | way, 7);
    for (int i = 0; i < TIMES; i++) {
        struct message message;

        tell('s', 0, 1);
        check(epoll_wait(set, &event, 1, PATIENCE_MS) == 1);
        right += event.events == EPOLLIN && event.data.u64 == 7;
        check(take(conns[0], &message));
        answered();
        right += epoll_wait(set, &event, 1, 0) == 0;
    }
    ping(0, TIMES);
    tell('w', 0, 0);
    check(epoll_wait(set, &event, 1, PATIENCE_MS) == 1 && event.events == EPOLLIN);
    answered();
    check(recv(conns[0], &then, sizeof then, 0) == 0);
    printf("{\"right\": %d, ", right);
}

/* One connection in two sets, with a thread at each. */
static void exclusive_twice(void)
{
    pthread_t threads[2];

    connect_some(1);
    others = epoll_create1(0);
    add(others, stop, EPOLLIN, MOST);
    add(set, conns[0], EPOLLIN | EPOLLEXCLUSIVE | way, 0);
    add(others, conns[0], EPOLLIN | EPOLLEXCLUSIVE | way, 0);
    for (intptr_t i = 0; i < 2; i++)
        check(pthread_create(&threads[i], NULL, handles, (void *)i) == 0);
    ask('v', 1, TIMES);
    check(write(stop, (uint64_t[]){1}, 8) == 8);
    for (int i = 0; i < 2; i++)
        check(pthread_join(threads[i], NULL) == 0);
    printf("{\"handled\": %d, \"slept\": %d, ", handled, slept);
}

/* Two sets wait for callers as prefork servers do; the connections that they get are like any other. */
static void exclusive_listeners(void)
{
    struct sockaddr_in where;
    int listener, sets[2];

    begin_peer(READY);
    listener = loopback_listener(&where);
    set_blocking(listener, 0);
    others = epoll_create1(0);
    sets[0] = set, sets[1] = others;
    add(set, listener, EPOLLIN | EPOLLEXCLUSIVE | way, 1);
    add(others, listener, EPOLLIN | EPOLLEXCLUSIVE | way, 1);
    accept_some(listener, &where, READY, sets);
    for (int i = 0; i < READY; i++) {
        add(sets[i % 2], conns[i], EPOLLIN, 2 + i);
        ping(i, TIMES);
    }
    printf("{\"accepted\": %d, ", READY);
}

static void exclusive(const char *what)
{
    int used = 1;

    if (!strcmp(what, "refused")) {
        exclusive_refused();
    } else if (!strcmp(what, "late")) {
        exclusive_late();
    } else if (!strcmp(what, "twice")) {
        exclusive_twice();
    } else {
        check(!strcmp(what, "listeners"));
        exclusive_listeners();
        used = READY;
    }
    printf("\"payload\": %d}\n", used * 2 * TIMES * SIZE);
    dismiss();
}

/* ---- the end, as a set shows it ---- */

#define ENDS 4
#define SHOWN 6

static uint32_t shown(int which)
{
    struct epoll_event events[MOST];
    int n = epoll_wait(set, events, MOST, 0);

    check(n == 0 || (n == 1 && events[0].data.u64 == (uint64_t)which));
    return n ? events[0].events : 0;
}

/* The bits of some waits together; of ONESHOT's, with the registration enabled anew before each. */
static uint32_t shown_in_all(int which, uint32_t events)
{
    uint32_t bits = 0;

    for (int i = 0; i < WAITS; i++) {
        if (events & EPOLLONESHOT)
            modify(set, conns[which], events, which);
        bits |= shown(which);
    }
    return bits;
}

/* Bits, in rows: the end, from the sleep that it ends on; after each message; after the end was read; when asked for
 * anew; after our own end. */
static void hangup(uint32_t events, char how, int unread)
{
    uint32_t seen[ENDS][SHOWN] = {0};

    connect_some(ENDS);
    for (int i = 0; i < ENDS; i++) {
        struct pollfd entry = {conns[i], POLLRDHUP, 0};
        struct epoll_event event = {0};
        struct message message;
        uint32_t *at = seen[i];
        ssize_t n;

        add(set, conns[i], events, i);
        ping(i, TIMES);
        modify(set, conns[i], events, i);
        /* "Writable", if that is asked for. */
        *at++ = shown_in_all(i, events);
        modify(set, conns[i], events & ~EPOLLOUT, i);
        if (unread) {
            /* All of it is there when it is looked at. */
            ask('s', i, unread);
            tell(how, i, 0);
            check(poll(&entry, 1, PATIENCE_MS) == 1);
        } else {
            tell(how, i, 0);
        }
        check(epoll_wait(set, &event, 1, PATIENCE_MS) == 1 && event.data.u64 == (uint64_t)i);
        check(event.events && !(event.events & EPOLLOUT));
        answered();
        check(poll(&entry, 1, PATIENCE_MS) == 1);
        /* Who was told once is not told again. */
        check(!(events & EPOLLONESHOT) || shown(i) == 0);
        *at++ = event.events | shown_in_all(i, events & ~EPOLLOUT);
        modify(set, conns[i], events, i);
        *at++ = shown_in_all(i, events);
        for (int u = 0; u < unread && take(conns[i], &message); u++)
            check(message.place == u);
        *at++ = shown_in_all(i, events);
        n = recv(conns[i], &message, SIZE, 0);
        check(how == 'z' ? n < 0 && errno == ECONNRESET : n == 0);
        modify(set, conns[i], events, i);
        *at++ = shown_in_all(i, events);
        shutdown(conns[i], SHUT_WR);
        *at++ = shown_in_all(i, events);
        check(close(conns[i]) == 0);
    }
    printf("{\"bits\": [");
    for (int i = 0; i < ENDS; i++) {
        printf("%s[", i ? ", " : "");
        for (int k = 0; k < SHOWN; k++)
            printf("%s%u", k ? ", " : "", seen[i][k]);
        printf("]");
    }
    printf("], \"payload\": %d}\n", 2 * ENDS * TIMES * SIZE);
    dismiss();
}

static uint32_t bits_of(const char *words)
{
    uint32_t bits = 0;

    bits |= strstr(words, "in") ? EPOLLIN : 0;
    bits |= strstr(words, "out") ? EPOLLOUT : 0;
    bits |= strstr(words, "rdhup") ? EPOLLRDHUP : 0;
    bits |= strstr(words, "edge") ? EPOLLET : 0;
    bits |= strstr(words, "once") ? EPOLLONESHOT : 0;
    return bits;
}

int main(int count, char **words)
{
    const char *what = count > 1 ? words[1] : "";

    signal(SIGPIPE, SIG_IGN);
    alarm(LIMIT_S);
    set = epoll_create1(0);
    stop = eventfd(0, 0);
    add(set, stop, EPOLLIN, MOST);
    if (!strcmp(what, "burst") && count == 3) {
        way = way_of(words[2]);
        burst();
    } else if (!strcmp(what, "flow") && count == 4) {
        way = way_of(words[2]), race = words[3];
        flow();
    } else if (!strcmp(what, "renames") && count == 3) {
        way = EPOLLONESHOT, race = words[2];
        renames();
    } else if (!strcmp(what, "alike") && count == 3) {
        alike(words[2]);
    } else if (!strcmp(what, "overwritten") && count == 2) {
        overwritten();
    } else if (!strcmp(what, "rotation") && count == 5) {
        way = way_of(words[3]);
        rotation(atoi(words[2]), !strcmp(words[4], "pipe"));
    } else if (!strcmp(what, "beside") && count == 4) {
        way = way_of(words[3]);
        beside(atoi(words[2]));
    } else if (!strcmp(what, "exclusive") && count == 4) {
        way = way_of(words[3]);
        exclusive(words[2]);
    } else if (!strcmp(what, "hangup") && count == 5) {
        hangup(bits_of(words[2]), words[3][0], atoi(words[4]));
    } else {
        return 2;
    }
    return 0;
}
