/* One epoll set that a process and its fork child wait on, both.
 *
 *   shared_set turns WAY WHO        one waits at a time, the other one the next time
 *   shared_set together WAY WHO     both wait all the time
 *
 * In the set: a connection that was on its lane before the fork, and a pipe. WAY: level, edge, once (of the
 * connection). WHO enables it anew with "once": own, the process that had the event; either, that one or the other.
 * Prints one line of JSON: what the two saw. "payload" is what both ends together should have received after the warm-up, in bytes.
 */
#include "sets.h"

#include <sys/mman.h>

#define MESSAGES 200
/* Of so many one makes a token, which comes by the pipe. */
#define TOKEN_EVERY 5

static struct {
    atomic_int got[MESSAGES], empty, others, slept, tokens;
    /* Whether each of the two has used the connection, for more than to wait for it. */
    atomic_int used[2];
} *seen;

static int set, stop, pipes[2], turns[2][2];
static uint32_t way;
static int is_own;

/* Takes the message that an event says is there. Its place; −1: another one was faster. */
static int takes(int who)
{
    struct message message;
    ssize_t n = recv(conns[0], &message, SIZE, MSG_DONTWAIT);

    seen->used[who] = 1;
    if (n < 0) {
        check(errno == EAGAIN);
        seen->empty++;
        return -1;
    }
    check(n == SIZE && is_made(&message));
    seen->got[message.place]++;
    return message.place;
}

/* The next event, if it comes. */
static uint64_t next(uint32_t wanted)
{
    struct epoll_event event = {0};
    int n = epoll_wait(set, &event, 1, PATIENCE_MS);

    check(n == 0 || n == 1);
    if (n == 0) {
        seen->slept++;
        exit(1);
    }
    seen->others += event.events != wanted;
    return event.data.u64;
}

/* ---- in turns ---- */

static void one_turn(int who, int message)
{
    struct epoll_event event;
    char byte;

    check(next(EPOLLIN) == 0);
    check(takes(who) == message);
    /* Nothing is left, for nobody. */
    seen->others += epoll_wait(set, &event, 1, 0);
    if (message % TOKEN_EVERY == 0) {
        check(write(pipes[1], "t", 1) == 1);
        check(next(EPOLLIN) == 1);
        check(read(pipes[0], &byte, 1) == 1);
        seen->tokens++;
    }
    if (message % 2)
        give(conns[0], 0, message);
    if (way & EPOLLONESHOT && (is_own || message % 3 == 0))
        modify(set, conns[0], EPOLLIN | way, 0);
    if (message % 2 == 0)
        give(conns[0], 0, message);
}

/* Two messages for each, then for the other; whose turn ends may leave the enabling to the next. */
static void takes_turns(int who)
{
    char byte;

    for (int i = 0; i < MESSAGES; i++) {
        if (i / 2 % 2 == who) {
            check(read(turns[who][0], &byte, 1) == 1);
            if (way & EPOLLONESHOT && i > 0 && !is_own && (i - 1) % 3 != 0)
                modify(set, conns[0], EPOLLIN | way, 0);
            one_turn(who, i);
            check(write(turns[(i + 1) / 2 % 2][1], "x", 1) == 1);
        }
    }
}

/* ---- together ---- */

static void waits_with_the_other(int who)
{
    for (;;) {
        uint64_t which = next(EPOLLIN);
        int place;
        char byte;

        if (which == MOST)
            return; /* stays readable, for the other one */
        if (which == 0) {
            place = takes(who);
            if (place < 0) {
                if (way & EPOLLONESHOT && is_own)
                    modify(set, conns[0], EPOLLIN | way, 0);
                continue;
            }
            if (place % TOKEN_EVERY == 0) {
                /* Whoever takes the token answers, and enables the connection anew. */
                if (way & EPOLLONESHOT && is_own)
                    modify(set, conns[0], EPOLLIN | way, 0);
                check(write(pipes[1], (char[]){place}, 1) == 1);
                continue;
            }
            if (way & EPOLLONESHOT && place % 2)
                modify(set, conns[0], EPOLLIN | way, 0);
            give(conns[0], 0, place);
            if (way & EPOLLONESHOT && place % 2 == 0)
                modify(set, conns[0], EPOLLIN | way, 0);
        } else {
            if (read(pipes[0], &byte, 1) < 0) {
                check(errno == EAGAIN);
                continue;
            }
            place = (unsigned char)byte;
            seen->tokens++;
            seen->used[who] = 1;
            if (way & EPOLLONESHOT && !is_own)
                modify(set, conns[0], EPOLLIN | way, 0);
            give(conns[0], 0, place);
        }
        if (place == MESSAGES - 1)
            check(write(stop, (uint64_t[]){1}, 8) == 8);
    }
}

int main(int count, char **words)
{
    void (*part)(int);
    int status, missing = 0, twice = 0;
    struct epoll_event event;
    pid_t child;

    check(count == 4);
    part = strcmp(words[1], "turns") ? waits_with_the_other : takes_turns;
    way = way_of(words[2]);
    is_own = !strcmp(words[3], "own");
    signal(SIGPIPE, SIG_IGN);
    alarm(LIMIT_S);
    seen = mmap(NULL, sizeof *seen, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    stop = eventfd(0, 0);
    check(seen != MAP_FAILED && pipe(pipes) == 0);
    set_blocking(pipes[0], 0);
    connect_some(1);
    set = epoll_create1(0);
    add(set, conns[0], EPOLLIN | way, 0);
    add(set, pipes[0], EPOLLIN, 1);
    add(set, stop, EPOLLIN, MOST);
    check(epoll_wait(set, &event, 1, 0) == 0);
    for (int i = 0; i < 2; i++)
        check(socketpair(AF_UNIX, SOCK_STREAM, 0, turns[i]) == 0);
    check(write(turns[0][1], "x", 1) == 1);
    child = fork();
    check(child >= 0);
    if (child == 0) {
        alarm(LIMIT_S);
        part(1);
        exit(0);
    }
    tell('v', 1, MESSAGES);
    part(0);
    answered();
    check(waitpid(child, &status, 0) == child && status == 0);
    for (int i = 0; i < MESSAGES; i++) {
        missing += seen->got[i] == 0;
        twice += seen->got[i] > 1;
    }
    /* Where both wait, an event may be told to both. */
    printf("{\"missing\": %d, \"twice\": %d, \"slept\": %d, \"tokens\": %d, \"others\": %d, \"empty\": %d, \"child\": %d, \"payload\": %d}\n",
           missing, twice, seen->slept, seen->tokens, seen->others, part == takes_turns ? (int)seen->empty : 0, seen->used[1], 2 * MESSAGES * SIZE);
    close(conns[0]);
    dismiss();
    return 0;
}
