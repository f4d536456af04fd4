/* A client and a server that use many calls: among other libraries, or on small stacks.
 *
 *   neighbours          one line of JSON: sums of what arrived
 *   neighbours stacks   how much stack each call took at most, in bytes, measured on a lane
 *   neighbours tiny     all of them on a thread with the smallest stack that there is
 */
#include "ends.h"

#include <limits.h>
#include <link.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/uio.h>

static int set_of_one;

/* ---- the calls, each with bytes that it needs and leaves none ---- */

#define PARTS 64

static char out[4096], in[4096];
static struct iovec out_parts[1024], in_parts[1024];
static struct mmsghdr out_messages[4], in_messages[4];
static int file;

static void echo(size_t n)
{
    tell('e', n / 100);
}

static void get(size_t n)
{
    check(recv(sock, in, n, MSG_WAITALL) == (ssize_t)n);
}

static void use_send(void)
{
    echo(100);
    check(send(sock, out, 100, MSG_NOSIGNAL) == 100);
    check(recv(sock, in, 100, MSG_WAITALL) == 100);
    answered();
}

static void use_write(void)
{
    echo(100);
    check(write(sock, out, 100) == 100);
    for (size_t at = 0; at < 100;) {
        ssize_t n = read(sock, in + at, 100 - at);

        check(n > 0);
        at += n;
    }
    answered();
}

static void use_vectors(void)
{
    echo(3200);
    for (int i = 0; i < 32; i++) {
        check(writev(sock, out_parts, 100) == 100);
        get(99);
        check(readv(sock, in_parts, 100) == 1);
    }
    answered();
}

static void use_messages(void)
{
    struct msghdr message = {.msg_iov = out_parts, .msg_iovlen = 100};

    echo(100);
    check(sendmsg(sock, &message, MSG_NOSIGNAL) == 100);
    message.msg_iov = in_parts;
    for (ssize_t got = 0; got < 100;) {
        ssize_t n = recvmsg(sock, &message, 0);

        check(n > 0);
        got += n;
    }
    answered();
}

static void use_many_messages(void)
{
    echo(400);
    check(sendmmsg(sock, out_messages, 4, MSG_NOSIGNAL) == 4);
    get(399);
    check(recvmmsg(sock, in_messages, 1, 0, NULL) == 1);
    answered();
}

static void use_poll(void)
{
    struct pollfd entry = {sock, POLLIN | POLLOUT, 0};

    echo(100);
    check(send(sock, out, 100, 0) == 100);
    entry.events = POLLIN;
    check(poll(&entry, 1, 10000) == 1 && entry.revents == POLLIN);
    get(100);
    check(poll(&entry, 1, 1) == 0);
    entry.events = POLLOUT;
    check(poll(&entry, 1, 0) == 1);
    answered();
}

static struct pollfd hundred[100];

static void use_long_poll(void)
{
    for (int i = 0; i < 100; i++) {
        hundred[i] = (struct pollfd){i == 99 ? sock : -1, POLLIN, 0};
    }
    echo(100);
    check(send(sock, out, 100, 0) == 100);
    check(poll(hundred, 100, 10000) == 1 && hundred[99].revents == POLLIN);
    get(100);
    answered();
}

static void use_select(void)
{
    struct timeval limit = {10, 0};
    fd_set reads;

    echo(100);
    check(send(sock, out, 100, 0) == 100);
    FD_ZERO(&reads);
    FD_SET(sock, &reads);
    check(select(sock + 1, &reads, NULL, NULL, &limit) == 1);
    get(100);
    FD_SET(sock, &reads);
    limit = (struct timeval){0, 1000};
    check(select(FD_SETSIZE, &reads, NULL, NULL, &limit) == 0);
    answered();
}

static void use_epoll(void)
{
    struct epoll_event event = {EPOLLIN, {.u64 = 7}};

    check(epoll_ctl(set_of_one, EPOLL_CTL_ADD, sock, &event) == 0);
    echo(100);
    check(send(sock, out, 100, 0) == 100);
    check(epoll_wait(set_of_one, &event, 1, 10000) == 1 && event.data.u64 == 7);
    get(100);
    check(epoll_wait(set_of_one, &event, 1, 1) == 0);
    check(epoll_ctl(set_of_one, EPOLL_CTL_DEL, sock, NULL) == 0);
    answered();
}

static void use_large(void)
{
    echo(4000);
    check(send(sock, out, 4000, 0) == 4000);
    get(4000);
    answered();
}

static void use_sendfile(void)
{
    off_t at = 0;

    echo(100);
    check(sendfile(sock, file, &at, 100) == 100);
    get(100);
    answered();
}

static void use_small_calls(void)
{
    int n = -1, one = 1, copy;

    check(ioctl(sock, FIONREAD, &n) == 0 && n == 0);
    check(setsockopt(sock, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one) == 0);
    check(fcntl(sock, F_GETFL) >= 0);
    copy = dup(sock);
    check(copy > 0 && dup2(sock, copy) == copy && close(copy) == 0);
}

/* A connection of its own: made, promoted, closed. */
static void use_connection(void)
{
    struct sockaddr_in address;
    int hear = loopback_listener(&address), fd = socket(AF_INET, SOCK_STREAM, 0), other;

    check(connect(fd, (struct sockaddr *)&address, sizeof address) == 0);
    other = accept(hear, NULL, NULL);
    check(other >= 0);
    for (int i = 0; i < 40; i++) {
        check(send(fd, out, 50, 0) == 50);
        check(recv(other, in, 50, MSG_WAITALL) == 50);
        check(send(other, out, 50, 0) == 50);
        check(recv(fd, in, 50, MSG_WAITALL) == 50);
    }
    check(shutdown(fd, SHUT_WR) == 0);
    check(recv(other, in, 1, 0) == 0);
    check(close(fd) == 0 && close(other) == 0 && close(hear) == 0);
}

/* A connection that leaves its lanes with bytes unread: they are handed over. */
static void use_hand_over(void)
{
    ask('s', 3000);
    check(dup2(sock, 0) == 0);
    check(receive_pattern(0, &theirs, 3000) == 3000);
    close(0);
}

static void use_fork(void)
{
    int status;
    pid_t pid = fork();

    if (pid == 0) {
        _exit(0);
    }
    check(waitpid(pid, &status, 0) == pid && status == 0);
}

static void use_vfork(void)
{
    int status;
    pid_t pid = vfork();

    if (pid == 0) {
        execl("/bin/true", "true", NULL);
        _exit(1);
    }
    check(waitpid(pid, &status, 0) == pid && status == 0);
}

static const struct {
    const char *name;
    void (*use)(void);
} CALLS[] = {
    {"send, recv", use_send},
    {"write, read", use_write},
    {"writev, readv", use_vectors},
    {"sendmsg, recvmsg", use_messages},
    {"sendmmsg, recvmmsg", use_many_messages},
    {"poll", use_poll},
    {"poll of 100", use_long_poll},
    {"select", use_select},
    {"epoll", use_epoll},
    {"send of 4000", use_large},
    {"sendfile", use_sendfile},
    {"ioctl, dup, close", use_small_calls},
    {"socket, connect, accept", use_connection},
    {"fork", use_fork},
    {"vfork, execl", use_vfork},
    {"dup2 onto 0", use_hand_over},
};

#define COUNT (sizeof CALLS / sizeof CALLS[0])

static void prepare(void)
{
    char name[] = "/tmp/sdp-neighbours-XXXXXX";

    for (size_t i = 0; i < sizeof out; i++) {
        out[i] = (char)(i % 251);
    }
    for (int i = 0; i < 100; i++) {
        out_parts[i] = (struct iovec){out + i, 1};
        in_parts[i] = (struct iovec){in + i, 1};
    }
    for (int i = 0; i < 4; i++) {
        out_messages[i].msg_hdr = (struct msghdr){.msg_iov = out_parts, .msg_iovlen = 100};
        in_messages[i].msg_hdr = (struct msghdr){.msg_iov = in_parts, .msg_iovlen = 100};
    }
    file = mkstemp(name);
    check(file >= 0 && unlink(name) == 0 && write(file, out, sizeof out) == sizeof out);
    set_of_one = epoll_create1(0);
    connect_to_child();
}

/* ---- stacks ---- */

#define PAINT 0x5d
#define ROOM (1 << 20)
/* What of its stack the thread itself uses, and the painter. */
#define OWN 512

static int call_of_thread;

static void *paint_and_use(void *room)
{
    char *mark = __builtin_frame_address(0);

    /* What is below is nobody's yet. */
    for (char *at = room; at < mark - OWN; at++) {
        *at = PAINT;
    }
    CALLS[call_of_thread].use();
    return mark - OWN;
}

static size_t depth_of(int call)
{
    static char *room;
    pthread_attr_t attributes;
    pthread_t thread;
    void *top;
    char *at;

    if (!room) {
        check(posix_memalign((void **)&room, 4096, ROOM) == 0);
    }
    call_of_thread = call;
    pthread_attr_init(&attributes);
    check(pthread_attr_setstack(&attributes, room, ROOM) == 0);
    check(pthread_create(&thread, &attributes, paint_and_use, room) == 0);
    pthread_join(thread, &top);
    for (at = room; at < (char *)top && *at == PAINT; at++) {
    }
    return (char *)top - at;
}

static void measure(void)
{
    prepare();
    printf("{");
    for (size_t i = 0; i < COUNT; i++) {
        size_t most = 0;

        /* Twice: what happens once, too. */
        for (int round = 0; round < (CALLS[i].use == use_hand_over ? 1 : 2); round++) {
            size_t depth = depth_of(i);

            most = depth > most ? depth : most;
        }
        printf("%s\"%s\": %zu", i ? ", " : "", CALLS[i].name, most);
    }
    dismiss();
    puts("}");
}

static void *use_all(void *nothing)
{
    for (size_t i = 0; i < COUNT; i++) {
        CALLS[i].use();
    }
    return nothing;
}

/* Variables of each thread of this very program, which lie on its stack. */
static int add_variables(struct dl_phdr_info *object, size_t size, void *sum)
{
    (void)size;
    for (int i = 0; i < object->dlpi_phnum; i++) {
        if (object->dlpi_phdr[i].p_type == PT_TLS) {
            *(size_t *)sum += object->dlpi_phdr[i].p_memsz;
        }
    }
    return 1; /* the first object is the program */
}

static void run_tiny(void)
{
    pthread_attr_t attributes;
    pthread_t thread;
    size_t variables = 0;

    prepare();
    dl_iterate_phdr(add_variables, &variables);
    pthread_attr_init(&attributes);
    check(pthread_attr_setstacksize(&attributes, 16384 + variables) == 0);
    check(pthread_create(&thread, &attributes, use_all, NULL) == 0);
    pthread_join(thread, NULL);
    dismiss();
    puts("{\"fine\": true}");
}

int main(int argc, char **argv)
{
    alarm(LIMIT_S);
    if (argc > 1 && strcmp(argv[1], "stacks") == 0) {
        measure();
    } else if (argc > 1 && strcmp(argv[1], "tiny") == 0) {
        run_tiny();
    } else {
        prepare();
        use_all(NULL);
        dismiss();
        puts("{\"fine\": true}");
    }
    return 0;
}
