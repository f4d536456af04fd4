/* What a wake-up costs a server, counted in instructions.
 *
 *   ready N WAKES
 *
 * Three processes: a server with one epoll set over N connections, a client, and a tracer that steps the
 * server through WAKES waits, instruction by instruction: from its call of `epoll_wait` until it has read
 * the message. Every other message is there before the call; the others come when the server is asleep in
 * it. Stepping needs no counters of the processor, and counts the same on every machine.
 *
 * Prints one line of JSON: medians and maxima of the instructions.
 */
#include "base.h"

#include <fcntl.h>
#include <stdint.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>

#define SIZE 64
/* On each connection before anything is counted. */
#define ROUND_TRIPS 16
#define WAKES_MAX 200
#define BACKLOG 4096

/* Where the server is: outside, or between its call and the message that it has read. */
enum { OUTSIDE, INSIDE };

static struct {
    volatile int phase, port;
} *shared;

static int connections, wakes;
static int *conns;

static void send_one(int fd)
{
    char message[SIZE] = {1};

    check(send(fd, message, SIZE, 0) == SIZE);
}

static void receive_one(int fd)
{
    char message[SIZE];

    check(recv(fd, message, SIZE, MSG_WAITALL) == SIZE);
}

/* One byte to or from another of the three processes. */
static void tell(int fd)
{
    check(write(fd, "x", 1) == 1);
}

static void hear(int fd)
{
    char byte;

    check(read(fd, &byte, 1) == 1);
}

/* The connection of a wake-up: one after the other, far from each other. */
static int chosen(int wake)
{
    unsigned mixed = (unsigned)wake * 2654435761u;

    return (int)((mixed >> 8) % (unsigned)connections);
}

static void serve(int orders)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    struct epoll_event events[64];
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int set = epoll_create1(EPOLL_CLOEXEC);

    check(listener >= 0 && set >= 0);
    check(bind(listener, (void *)&address, length) == 0 && listen(listener, BACKLOG) == 0);
    check(getsockname(listener, (void *)&address, &length) == 0);
    shared->port = ntohs(address.sin_port);
    tell(orders);
    for (int i = 0; i < connections; i++) {
        struct epoll_event event = {.events = EPOLLIN, .data.u64 = (uint64_t)i};

        conns[i] = accept(listener, NULL, NULL);
        check(conns[i] >= 0);
        check(epoll_ctl(set, EPOLL_CTL_ADD, conns[i], &event) == 0);
    }
    for (int i = 0; i < connections; i++) {
        for (int n = 0; n < ROUND_TRIPS; n++) {
            receive_one(conns[i]);
            send_one(conns[i]);
        }
    }
    /* The first wait looks at each connection once. */
    hear(orders);
    check(epoll_wait(set, events, 64, -1) == 1);
    receive_one(conns[events[0].data.u64]);
    send_one(conns[0]);
    check(ptrace(PTRACE_TRACEME, 0, 0, 0) == 0);
    for (int w = 0; w < wakes; w++) {
        int which = chosen(w), ready;

        hear(orders);
        raise(SIGSTOP);
        shared->phase = INSIDE;
        ready = epoll_wait(set, events, 64, -1);
        receive_one(conns[which]);
        shared->phase = OUTSIDE;
        check(ready == 1 && events[0].data.u64 == (uint64_t)which);
        send_one(conns[which]);
    }
    hear(orders);
}

static void ask(int orders)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};

    hear(orders);
    address.sin_port = htons((uint16_t)shared->port);
    for (int i = 0; i < connections; i++) {
        conns[i] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        check(conns[i] >= 0 && connect(conns[i], (void *)&address, sizeof address) == 0);
    }
    for (int i = 0; i < connections; i++) {
        for (int n = 0; n < ROUND_TRIPS; n++) {
            send_one(conns[i]);
            receive_one(conns[i]);
        }
    }
    send_one(conns[0]);
    tell(orders);
    receive_one(conns[0]);
    for (int w = 0; w < wakes; w++) {
        hear(orders);
        send_one(conns[chosen(w)]);
        tell(orders);
        receive_one(conns[chosen(w)]);
    }
    hear(orders);
}

/* Whether a traced process that is not stopped sleeps in a call. */
static int is_asleep(pid_t pid)
{
    char path[64], text[512] = {0}, *after;
    int fd;

    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    check(fd >= 0 && read(fd, text, sizeof text - 1) > 0);
    close(fd);
    after = strrchr(text, ')');
    check(after != NULL);
    return after[2] == 'S';
}

/* Waits until the traced process has stopped. `client`: not −1, and the process sleeps in its call: the
 * client is told, and the next message comes. True when it was. */
static int until_stopped(pid_t pid, int client)
{
    int status, was_told = 0;

    for (;;) {
        pid_t got = waitpid(pid, &status, client >= 0 && !was_told ? WNOHANG : 0);

        check(got >= 0);
        if (got == pid) {
            check(WIFSTOPPED(status));
            return was_told;
        }
        if (is_asleep(pid)) {
            tell(client);
            was_told = 1;
        }
    }
}

/* Instructions of one wait. */
static long stepped(pid_t server, int client, int sleeps)
{
    long count = 0;
    int was_told = 0;

    /* The first steps lead out of raise(). */
    for (int was_inside = 0; !was_inside || shared->phase == INSIDE;) {
        int may_sleep = sleeps && !was_told && shared->phase == INSIDE;

        was_inside |= shared->phase == INSIDE;
        count += was_inside;
        check(ptrace(PTRACE_SINGLESTEP, server, 0, 0) == 0);
        was_told |= until_stopped(server, may_sleep ? client : -1);
    }
    check(was_told == sleeps);
    return count;
}

static int ascending(const void *a, const void *b)
{
    long x = *(const long *)a, y = *(const long *)b;

    return (x > y) - (x < y);
}

/* A child that has a role, and the line to it. */
static pid_t begin(void (*role)(int), int *orders)
{
    int ends[2];
    pid_t pid;

    check(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
    pid = fork();
    check(pid >= 0);
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        close(ends[0]);
        role(ends[1]);
        exit(0);
    }
    close(ends[1]);
    *orders = ends[0];
    return pid;
}

static void end(pid_t pid, int orders)
{
    int status;

    tell(orders);
    check(waitpid(pid, &status, 0) == pid);
    check(status == 0);
}

int main(int count, char **words)
{
    struct rlimit limit;
    long steps[2][WAKES_MAX];
    int used[2] = {0, 0}, to_server, to_client;
    pid_t server, client;

    check(count == 3);
    connections = atoi(words[1]);
    wakes = atoi(words[2]);
    check(wakes >= 2 && wakes <= WAKES_MAX && connections > 0);
    check(getrlimit(RLIMIT_NOFILE, &limit) == 0);
    limit.rlim_cur = limit.rlim_max;
    check(setrlimit(RLIMIT_NOFILE, &limit) == 0);
    conns = calloc((size_t)connections, sizeof *conns);
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    check(conns && shared != MAP_FAILED);
    server = begin(serve, &to_server);
    hear(to_server);
    client = begin(ask, &to_client);
    tell(to_client);
    hear(to_client);
    tell(to_server);
    for (int w = 0; w < wakes; w++) {
        int sleeps = w % 2;

        if (!sleeps) {
            tell(to_client);
            hear(to_client);
        }
        tell(to_server);
        until_stopped(server, -1);
        steps[sleeps][used[sleeps]++] = stepped(server, to_client, sleeps);
        if (sleeps)
            hear(to_client);
        check(ptrace(PTRACE_CONT, server, 0, 0) == 0);
    }
    end(client, to_client);
    end(server, to_server);
    for (int i = 0; i < 2; i++)
        qsort(steps[i], (size_t)used[i], sizeof steps[i][0], ascending);
    printf("{\"there\": %ld, \"asleep\": %ld, \"most_there\": %ld, \"most_asleep\": %ld}\n",
           steps[0][used[0] / 2], steps[1][used[1] / 2], steps[0][used[0] - 1], steps[1][used[1] - 1]);
    return 0;
}
