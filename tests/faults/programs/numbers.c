/* Numbers whose meaning differs from thread to thread, or from a child to the parent whose memory it runs on.
 *
 *   numbers CASE HOW    one line of JSON: what was seen
 *
 * HOW says who makes the child: vfork, clone or raw (`syscall`); for threads: call or raw.
 */
#include "ends.h"

#include <sched.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/uio.h>

#define STACK 262144

#ifndef CLOSE_RANGE_UNSHARE
#define CLOSE_RANGE_UNSHARE 2
#endif

static const char *how;

/* ---- children on this memory ---- */

/* What the child saw; it writes to its parent's memory. */
static volatile long saw[40];
static volatile int seen;

static void note(long what)
{
    saw[seen] = what;
    seen++;
}

/* A result, or the error. */
static void note_call(long result)
{
    note(result < 0 ? -errno : result);
}

static int (*volatile act)(void *);
static char stack[STACK] __attribute__((aligned(16)));

/* Runs `work` in a child that shares the memory and has a copy of the descriptors. */
static void in_child(int (*work)(void *))
{
    int status;
    pid_t pid;

    act = work;
    seen = 0;
    if (strcmp(how, "vfork") == 0) {
        pid = vfork();
        if (pid == 0) {
            _exit(act(NULL));
        }
    } else {
        pid = clone(work, stack + STACK, CLONE_VM | CLONE_VFORK | SIGCHLD, NULL);
    }
    check(pid > 0);
    check(waitpid(pid, &status, 0) == pid && status == 0);
}

static void print_seen(void)
{
    printf("\"child\": [");
    for (int i = 0; i < seen; i++) {
        printf("%s%ld", i ? ", " : "", saw[i]);
    }
    printf("]");
}

static int ends[2];

/* A pipe in the place of the connection: written. */
static int write_to_pipe(void *nothing)
{
    struct iovec parts[2] = {{"of the ", 7}, {"pipe's", 6}};

    (void)nothing;
    note_call(dup2(ends[1], sock));
    note_call(write(sock, "these are ", 10));
    note_call(writev(sock, parts, 2));
    note_call(send(sock, "x", 1, MSG_NOSIGNAL));
    return 0;
}

static int read_from_pipe(void *nothing)
{
    char room[100];

    (void)nothing;
    note_call(dup2(ends[0], sock));
    note_call(read(sock, room, sizeof room));
    note(room[0]);
    note_call(recv(sock, room, sizeof room, MSG_DONTWAIT));
    return 0;
}

static int close_and_use(void *nothing)
{
    struct pollfd entry = {sock, POLLIN | POLLOUT, 0};
    char room[10];

    (void)nothing;
    note_call(close(sock));
    note_call(write(sock, "lost", 4));
    note_call(read(sock, room, sizeof room));
    note_call(send(sock, "lost", 4, MSG_NOSIGNAL));
    note_call(recv(sock, room, sizeof room, 0));
    note_call(shutdown(sock, SHUT_RDWR));
    note_call(close(sock));
    note_call(poll(&entry, 1, 0));
    note(entry.revents);
    return 0;
}

/* Another socket in the place of the connection: everything that can be done with one. */
static int use_other(void *nothing)
{
    struct pollfd entry = {sock, POLLIN | POLLOUT, 0};
    struct iovec part = {"vector", 6};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    struct epoll_event event = {EPOLLIN, {.u64 = 5}};
    struct timeval none = {0, 0};
    char room[100];
    int one = 1, waiting = -1, set;
    fd_set reads;

    (void)nothing;
    note_call(dup2(ends[0], sock));
    note_call(send(sock, "first", 5, 0));
    note_call(sendmsg(sock, &message, 0));
    note_call(recv(ends[1], room, sizeof room, 0)); /* a stream of the kernel's: both */
    note_call(poll(&entry, 1, 0));
    note(entry.revents);
    note_call(write(ends[1], "0123456789", 10));
    note_call(ioctl(sock, FIONREAD, &waiting));
    note(waiting);
    FD_ZERO(&reads);
    FD_SET(sock, &reads);
    note_call(select(sock + 1, &reads, NULL, NULL, &none));
    set = epoll_create1(0);
    note_call(epoll_ctl(set, EPOLL_CTL_ADD, sock, &event));
    event.data.u64 = 0;
    note_call(epoll_wait(set, &event, 1, 0));
    note(event.data.u64);
    close(set);
    part.iov_base = room;
    part.iov_len = 4;
    note_call(recvmsg(sock, &message, 0));
    note_call(readv(sock, &part, 1));
    note_call(recv(sock, room, 1, MSG_PEEK));
    note_call(setsockopt(sock, SOL_SOCKET, SO_OOBINLINE, &one, sizeof one));
    note_call(shutdown(sock, SHUT_WR));
    note_call(recv(ends[1], room, sizeof room, 0));
    note_call(fcntl(sock, F_SETFL, O_NONBLOCK));
    note_call(close(sock));
    return 0;
}

/* A file in the place of the connection, into a pipe. */
static int send_file(void *nothing)
{
    int file = open("/dev/zero", O_RDONLY);
    char room[10];

    (void)nothing;
    note_call(dup2(file, sock));
    note_call(sendfile(ends[1], sock, NULL, sizeof room));
    note_call(close(sock));
    note_call(close(file));
    return 0;
}

/* The connection itself, used by the child. */
static int use_connection(void *nothing)
{
    (void)nothing;
    send_pattern(sock, &ours, 1000);
    note(receive_pattern(sock, &theirs, 2000));
    send_pattern(sock, &ours, 500);
    return 0;
}

static int wait_for_connection(void *nothing)
{
    struct pollfd entry = {sock, POLLIN, 0};

    (void)nothing;
    note_call(poll(&entry, 1, 10000));
    note(entry.revents);
    note(receive_pattern(sock, &theirs, 10));
    return 0;
}

/* A listener in the place of the connection. */
static int listen_there(void *nothing)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int other;

    (void)nothing;
    close(sock);
    other = socket(AF_INET, SOCK_STREAM, 0);
    note(other == sock);
    note_call(bind(other, (struct sockaddr *)&address, sizeof address));
    note_call(listen(other, 1));
    return 0;
}

/* Bytes unread on the connection, and a copy of its number passed on where that names something else. */
static int pass_other(void *nothing)
{
    char byte = 'p', room[64] = {0};
    struct iovec part = {&byte, 1};
    struct msghdr message = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = room, .msg_controllen = CMSG_SPACE(4)};
    struct cmsghdr *control = CMSG_FIRSTHDR(&message);

    (void)nothing;
    control->cmsg_level = SOL_SOCKET;
    control->cmsg_type = SCM_RIGHTS;
    control->cmsg_len = CMSG_LEN(4);
    note_call(dup2(2, sock));
    memcpy(CMSG_DATA(control), &sock, 4);
    note_call(sendmsg(ends[0], &message, 0));
    return 0;
}

/* What the child makes of its numbers, then forks. */
static int fork_further(void *nothing)
{
    int status;
    pid_t pid;

    (void)nothing;
    note_call(dup2(ends[1], sock));
    pid = fork();
    if (pid == 0) {
        _exit(write(sock, "grandchild", 10) == 10 ? 0 : 1);
    }
    note_call(waitpid(pid, &status, 0) == pid);
    note(status);
    return 0;
}

/* Handlers of the child's own. */
static volatile sig_atomic_t parents, childs;

static void count_parents(int number)
{
    (void)number;
    parents++;
}

static void count_childs(int number)
{
    (void)number;
    childs++;
}

static int handle_signals(void *nothing)
{
    (void)nothing;
    signal(SIGUSR1, count_childs);
    signal(SIGUSR2, SIG_IGN);
    raise(SIGUSR1);
    raise(SIGUSR2);
    note(parents);
    note(childs);
    note(signal(SIGUSR1, SIG_DFL) == count_childs);
    return 0;
}

/* The pipe's content, then the connection's, which nobody has touched. */
static void after_child(void)
{
    char room[100] = {0};
    int flags = fcntl(ends[0], F_GETFL);
    ssize_t n;

    fcntl(ends[0], F_SETFL, flags | O_NONBLOCK);
    n = read(ends[0], room, sizeof room - 1);
    print_seen();
    printf(", \"pipe\": \"%s\", \"n\": %zd, ", n > 0 ? room : "", n < 0 ? -1 : n);
}

/* Another thread goes on with the connection while the number is a pipe's in one child after the other. */
static atomic_int is_over;

static void *goes_on(void *nothing)
{
    while (!is_over) {
        ping(20);
    }
    return nothing;
}

static void busy(void)
{
    pthread_t thread;

    check(pthread_create(&thread, NULL, goes_on, NULL) == 0);
    for (int i = 0; i < 50; i++) {
        char room[100];

        check(pipe(ends) == 0);
        in_child(write_to_pipe);
        check(read(ends[0], room, sizeof room) == 23);
        close(ends[0]);
        close(ends[1]);
    }
    check(pipe(ends) == 0);
    in_child(write_to_pipe);
    is_over = 1;
    pthread_join(thread, NULL);
}

static void children(const char *what)
{
    connect_to_child();
    if (strcmp(what, "write") == 0) {
        check(pipe(ends) == 0);
        in_child(write_to_pipe);
    } else if (strcmp(what, "read") == 0) {
        check(pipe(ends) == 0 && write(ends[1], "pipe", 4) == 4);
        ask('s', 5000);
        in_child(read_from_pipe);
        check(receive_pattern(sock, &theirs, 5000) == 5000);
    } else if (strcmp(what, "close") == 0) {
        check(pipe(ends) == 0);
        in_child(close_and_use);
    } else if (strcmp(what, "other") == 0) {
        check(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
        ask('s', 3000);
        in_child(use_other);
        check(receive_pattern(sock, &theirs, 3000) == 3000);
    } else if (strcmp(what, "file") == 0) {
        check(pipe(ends) == 0);
        ask('s', 3000); /* not read before the child has run */
        in_child(send_file);
        check(receive_pattern(sock, &theirs, 3000) == 3000);
    } else if (strcmp(what, "use") == 0) {
        check(pipe(ends) == 0);
        ask('s', 2500);
        in_child(use_connection);
        check(ask('r', 1500).n == 1500);
        check(receive_pattern(sock, &theirs, 500) == 500);
    } else if (strcmp(what, "wait") == 0) {
        check(pipe(ends) == 0);
        tell('s', 10);
        nap_us(20000);
        in_child(wait_for_connection);
        answered();
    } else if (strcmp(what, "listen") == 0) {
        check(pipe(ends) == 0);
        in_child(listen_there);
    } else if (strcmp(what, "pass") == 0) {
        check(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
        in_child(pass_other);
    } else if (strcmp(what, "fork") == 0) {
        check(pipe(ends) == 0);
        in_child(fork_further);
    } else if (strcmp(what, "signal") == 0) {
        check(pipe(ends) == 0);
        signal(SIGUSR1, count_parents);
        signal(SIGUSR2, count_parents);
        in_child(handle_signals);
        raise(SIGUSR1);
        raise(SIGUSR2);
        note(parents);
        note(childs);
        note(signal(SIGUSR1, SIG_DFL) == count_parents);
    } else if (strcmp(what, "busy") == 0) {
        busy();
    } else {
        check(0);
    }
    printf("{");
    after_child();
    ping(20);
    ask('s', 40000);
    check(receive_pattern(sock, &theirs, 40000) == 40000);
    send_pattern(sock, &ours, 40000);
    check(ask('r', 40000).n == 40000);
    finish();
    printf("\"fine\": true}\n");
}

/* ---- threads and processes that part ways ---- */

static int is_raw(void)
{
    return strcmp(how, "raw") == 0;
}

/* Descriptors of one's own for the calling thread. */
static void part(void)
{
    check((is_raw() ? syscall(SYS_unshare, CLONE_FILES) : unshare(CLONE_FILES)) == 0);
}

static void part_and_close(void)
{
    int result = is_raw() ? syscall(SYS_close_range, 3, ~0U, CLOSE_RANGE_UNSHARE)
                          : close_range(3, ~0U, CLOSE_RANGE_UNSHARE);

    check(result == 0);
}

/* A server beside us that sends everything back. */
static struct sockaddr_in echo_at;
static pid_t echoer;

static void start_echo(void)
{
    int hear = loopback_listener(&echo_at);

    check(listen(hear, 64) == 0);
    echoer = fork();
    check(echoer >= 0);
    if (echoer == 0) {
        struct pollfd all[65] = {{hear, POLLIN, 0}};
        int count = 1;
        static char room[70000];

        alarm(LIMIT_S);
        for (;;) {
            check(poll(all, count, -1) > 0);
            if (all[0].revents && count < 65) {
                all[count].fd = accept(hear, NULL, NULL);
                all[count].events = POLLIN;
                all[count++].revents = 0;
            }
            for (int i = 1; i < count; i++) {
                if (all[i].revents) {
                    ssize_t n = recv(all[i].fd, room, sizeof room, 0);

                    if (n <= 0) {
                        close(all[i].fd);
                        all[i] = all[--count];
                        break;
                    }
                    for (ssize_t at = 0; at < n;) {
                        ssize_t sent = send(all[i].fd, room + at, n - at, MSG_NOSIGNAL);

                        check(sent > 0);
                        at += sent;
                    }
                }
            }
        }
    }
    close(hear);
}

static int connect_to_echo(void)
{
    int fd = socket(AF_INET, SOCK_STREAM, 0);

    check(fd >= 0 && connect(fd, (struct sockaddr *)&echo_at, sizeof echo_at) == 0);
    return fd;
}

/* Round trips of bytes that tell whose they are. How many were wrong. */
static int talk(int fd, int mark, int rounds)
{
    char out[300], back[300];
    int wrong = 0;

    for (int i = 0; i < rounds; i++) {
        memset(out, mark, sizeof out);
        out[0] = (char)i;
        check(send(fd, out, sizeof out, MSG_NOSIGNAL) == sizeof out);
        memset(back, 0, sizeof back);
        if (recv(fd, back, sizeof back, MSG_WAITALL) != sizeof back
            || memcmp(out, back, sizeof out) != 0) {
            wrong++;
        }
    }
    return wrong;
}

#define THREADS 4

static pthread_barrier_t all;
static int numbers[THREADS], wrongs[THREADS];
static int shared_fd, closed_fd;

static void *connects(void *which)
{
    long me = (long)which;
    int fd;

    part();
    pthread_barrier_wait(&all);
    numbers[me] = fd = connect_to_echo();
    pthread_barrier_wait(&all);
    wrongs[me] = talk(fd, 'A' + me, 300);
    pthread_barrier_wait(&all);
    close(fd);
    return NULL;
}

/* Threads with descriptors of their own connect: equal numbers, different connections. */
static void connect_apart(void)
{
    pthread_t threads[THREADS];
    int are_equal = 1, wrong = 0, fd, before;

    start_echo();
    fd = connect_to_echo();
    before = talk(fd, 'm', 100);
    pthread_barrier_init(&all, NULL, THREADS);
    for (long i = 0; i < THREADS; i++) {
        check(pthread_create(&threads[i], NULL, connects, (void *)i) == 0);
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        are_equal &= numbers[i] == numbers[0];
        wrong += wrongs[i];
    }
    wrong += talk(fd, 'm', 100);
    printf("{\"equal\": %d, \"wrong\": %d, \"before\": %d}\n", are_equal, wrong, before);
}

/* Connections from before are everybody's, whoever parts, and a close is the closer's alone. */
static void *keeps(void *nothing)
{
    (void)nothing;
    part();
    wrongs[0] = talk(shared_fd, 'k', 50);
    close(closed_fd);
    check(open("/dev/null", O_RDWR) == closed_fd);
    check(write(closed_fd, "to nobody", 9) == 9);
    wrongs[0] += recv(closed_fd, wrongs, 1, MSG_DONTWAIT) != -1 || errno != ENOTSOCK;
    return NULL;
}

/* What is unread when a thread parts is still there, also of a peer that is gone. */
static void *parts(void *nothing)
{
    part();
    return nothing;
}

static void part_with_unread(int is_gone)
{
    pthread_t thread;
    char byte;

    connect_to_child();
    ask('s', 5000);
    if (is_gone) {
        ask('c', 0);
    }
    check(pthread_create(&thread, NULL, parts, NULL) == 0);
    pthread_join(thread, NULL);
    check(receive_pattern(sock, &theirs, 5000) == 5000);
    if (!is_gone) {
        send_pattern(sock, &ours, 3000);
        check(ask('r', 3000).n == 3000);
        finish();
    } else {
        check(recv(sock, &byte, 1, 0) == 0);
        dismiss();
    }
    printf("{\"fine\": true}\n");
}

/* Who sleeps on a connection when a thread parts goes on to sleep until there is something. */
static atomic_int sleeper;

static void *receives(void *nothing)
{
    sleeper = thread_id();
    wrongs[1] = receive_pattern(sock, &theirs, 5000) != 5000;
    return nothing;
}

static void *waits(void *nothing)
{
    struct epoll_event event = {EPOLLIN, {.u64 = 9}};
    int set = epoll_create1(0);

    check(epoll_ctl(set, EPOLL_CTL_ADD, sock, &event) == 0);
    event.data.u64 = 0;
    sleeper = thread_id();
    wrongs[1] = epoll_wait(set, &event, 1, 20000) != 1 || event.data.u64 != 9;
    wrongs[1] += receive_pattern(sock, &theirs, 5000) != 5000;
    return nothing;
}

static void part_beside(void *(*sleeps_in)(void *))
{
    pthread_t thread, other;

    connect_to_child();
    check(pthread_create(&thread, NULL, sleeps_in, NULL) == 0);
    until_asleep(&sleeper);
    check(pthread_create(&other, NULL, parts, NULL) == 0);
    pthread_join(other, NULL);
    until_asleep(&sleeper);
    ask('s', 5000);
    pthread_join(thread, NULL);
    finish();
    printf("{\"wrong\": %d}\n", wrongs[1]);
}

static void *closes_all(void *nothing)
{
    (void)nothing;
    part_and_close();
    wrongs[0] = write(shared_fd, "x", 1) != -1 || errno != EBADF;
    return NULL;
}

static void keep_apart(void *(*work)(void *))
{
    pthread_t thread;
    int before, wrong;

    start_echo();
    shared_fd = connect_to_echo();
    closed_fd = connect_to_echo();
    before = talk(shared_fd, 's', 100) + talk(closed_fd, 'c', 100);
    check(pthread_create(&thread, NULL, work, NULL) == 0);
    pthread_join(thread, NULL);
    wrong = wrongs[0] + talk(shared_fd, 's', 100) + talk(closed_fd, 'c', 100);
    printf("{\"wrong\": %d, \"before\": %d}\n", wrong, before);
}

/* A child of a process with threads closes what it got, as before it executes something: its own affair. */
static void *sleeps(void *nothing)
{
    pause();
    return nothing;
}

static void close_in_child(void)
{
    pthread_t thread;
    int before, status;
    pid_t pid;

    start_echo();
    check(pthread_create(&thread, NULL, sleeps, NULL) == 0);
    shared_fd = connect_to_echo();
    before = talk(shared_fd, 's', 100);
    pid = fork();
    if (pid == 0) {
        part_and_close();
        _exit(write(shared_fd, "x", 1) == -1 && errno == EBADF ? 0 : 1);
    }
    check(waitpid(pid, &status, 0) == pid);
    printf("{\"status\": %d, \"wrong\": %d, \"before\": %d}\n", status,
           talk(shared_fd, 's', 2000), before);
}

/* ---- clone, with memory and descriptors shared or not ---- */

static volatile int told;

static int clone_works(void *nothing)
{
    int fd;

    (void)nothing;
    /* The number is somebody else's from here on, for whoever shares the descriptors. */
    close(closed_fd);
    fd = open("/dev/null", O_RDWR);
    if (fd != closed_fd) {
        syscall(SYS_exit, 3);
    }
    if (write(closed_fd, "to nobody", 9) != 9) {
        syscall(SYS_exit, 4);
    }
    told = 1;
    syscall(SYS_exit, 0);
    return 0;
}

static void clone_with(int flags)
{
    int status, before, wrong = 0, is_null;
    struct stat what;
    pid_t pid;

    start_echo();
    shared_fd = connect_to_echo();
    closed_fd = connect_to_echo();
    before = talk(shared_fd, 's', 100) + talk(closed_fd, 'c', 100);
    if (is_raw() && !(flags & CLONE_VM)) {
        pid = syscall(SYS_clone, flags | SIGCHLD, 0, 0, 0, 0);
        if (pid == 0) {
            clone_works(NULL);
        }
    } else {
        pid = clone(clone_works, stack + STACK, flags | SIGCHLD, NULL);
    }
    check(pid > 0);
    check(waitpid(pid, &status, __WALL) == pid);
    check(fstat(closed_fd, &what) == 0);
    is_null = S_ISCHR(what.st_mode);
    wrong += talk(shared_fd, 's', 200);
    if (is_null) {
        wrong += write(closed_fd, "to nobody", 9) != 9;
        close(closed_fd);
        /* A number that is used once more, by us. */
        check(connect_to_echo() == closed_fd);
    }
    wrong += talk(closed_fd, 'd', 200);
    printf("{\"status\": %d, \"null\": %d, \"wrong\": %d, \"before\": %d, \"told\": %d}\n", status,
           is_null, wrong, before, told);
}

/* A fork by `syscall`: the child uses, closes and ends as any other. */
static void raw_fork(void)
{
    int status, before, wrong;
    pid_t pid;

    start_echo();
    shared_fd = connect_to_echo();
    closed_fd = connect_to_echo();
    before = talk(shared_fd, 's', 100) + talk(closed_fd, 'c', 100);
#ifdef SYS_fork
    pid = syscall(SYS_fork);
#else
    pid = syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
#endif
    if (pid == 0) {
        wrong = talk(shared_fd, 'k', 50);
        close(closed_fd);
        check(open("/dev/null", O_RDWR) == closed_fd);
        wrong += write(closed_fd, "to nobody", 9) != 9;
        _exit(wrong);
    }
    check(waitpid(pid, &status, 0) == pid);
    wrong = talk(shared_fd, 's', 200) + talk(closed_fd, 'c', 200);
    printf("{\"status\": %d, \"wrong\": %d, \"before\": %d}\n", status, wrong, before);
}

int main(int argc, char **argv)
{
    const char *what;

    check(argc == 3);
    alarm(LIMIT_S);
    what = argv[1];
    how = argv[2];
    if (strncmp(what, "child-", 6) == 0) {
        children(what + 6);
    } else if (strcmp(what, "apart") == 0) {
        connect_apart();
    } else if (strcmp(what, "keep") == 0) {
        keep_apart(keeps);
    } else if (strcmp(what, "beside-recv") == 0) {
        part_beside(receives);
    } else if (strcmp(what, "beside-epoll") == 0) {
        part_beside(waits);
    } else if (strcmp(what, "unread") == 0) {
        part_with_unread(0);
    } else if (strcmp(what, "unread-gone") == 0) {
        part_with_unread(1);
    } else if (strcmp(what, "close-range") == 0) {
        keep_apart(closes_all);
    } else if (strcmp(what, "close-range-child") == 0) {
        close_in_child();
    } else if (strcmp(what, "clone-vm") == 0) {
        clone_with(CLONE_VM);
    } else if (strcmp(what, "clone-files") == 0) {
        clone_with(CLONE_FILES);
    } else if (strcmp(what, "clone-both") == 0) {
        clone_with(CLONE_VM | CLONE_FILES);
    } else if (strcmp(what, "clone-waiting") == 0) {
        clone_with(CLONE_VM | CLONE_VFORK);
    } else if (strcmp(what, "clone-both-waiting") == 0) {
        clone_with(CLONE_VM | CLONE_FILES | CLONE_VFORK);
    } else if (strcmp(what, "clone-none") == 0) {
        clone_with(0);
    } else if (strcmp(what, "fork") == 0) {
        raw_fork();
    } else {
        check(0);
    }
    fflush(stdout);
    if (echoer > 0) {
        kill(echoer, SIGKILL);
    }
    return 0;
}
