/* Calls, flags and options whose answers are the kernel's: what each gives on a connection that is on its lane. */
#include "answers.h"

#include <sys/resource.h>

#define PEEK_OFF 42
#define PACING 47
#define ZEROCOPY_RECEIVE 35
#define INQ 36
#define VECTORS 1025

/* Newer than the C library's. */
struct zerocopy {
    uint64_t address;
    uint32_t length, skip, queued;
    int32_t error;
    uint64_t copy_to;
    int32_t copy_len;
    uint32_t flags;
    uint64_t control, control_len;
    uint32_t control_flags, reserved;
};

/* ---- sendfile ---- */

static int file_of(long n)
{
    char path[] = "/tmp/answers-XXXXXX";
    int fd = mkstemp(path);

    check(fd >= 0 && unlink(path) == 0);
    for (long i = 0; i < n; i++) {
        room[i] = 'A' + i % 26;
    }
    check(write(fd, room, n) == n && lseek(fd, 0, SEEK_SET) == 0);
    return fd;
}

static void send_from(const char *kind, int input)
{
    char what[80];
    off_t offsets[] = {0, 2, 100000, -1, 0x7ffffffffffffffe};
    long sent;

    for (size_t i = 0; i < sizeof offsets / sizeof *offsets; i++) {
        for (long n = 0; n <= 40000; n += 20000) {
            off_t at = offsets[i];

            errno = 0;
            sent = sendfile(sock, input, &at, n);
            snprintf(what, sizeof what, "%s at %ld of %ld", kind, (long)offsets[i], n);
            say(what, sent, errno);
            say("  then at", at, 0);
            arrives("  sum", sent);
        }
    }
    for (long n = 0; n <= 9; n += 3) {
        errno = 0;
        sent = sendfile(sock, input, NULL, n);
        snprintf(what, sizeof what, "%s here of %ld", kind, n);
        say(what, sent, errno);
        arrives("  sum", sent);
        errno = 0;
        CALL("  position", lseek(input, 0, SEEK_CUR));
    }
    CALL("  too many", sendfile(sock, input, NULL, -1));
    CALL("  bad offset", sendfile(sock, input, (off_t *)8, 3));
}

static void sendfile_from_files(void)
{
    int memory = memfd_create("answers", 0), sparse = memfd_create("answers", 0), big = file_of(50000), far = file_of(9);

    begin();
    check(write(memory, "0123456789", 10) == 10 && lseek(memory, 3, SEEK_SET) == 3);
    check(ftruncate(sparse, 30000) == 0 && lseek(far, 1 << 20, SEEK_SET) > 0);
    send_from("file", big);
    send_from("beyond its end", far);
    send_from("memory file", memory);
    send_from("sparse file", sparse);
    send_from("empty file", file_of(0));
    send_from("empty memory file", memfd_create("answers", 0));
    send_from("directory", open("/", O_RDONLY));
    send_from("null", open("/dev/null", O_RDWR));
    send_from("closed", 999);
    send_from("write-only", open("/dev/null", O_WRONLY));
    send_from("O_PATH", open("/", O_PATH));
    end();
}

static void sendfile_from_the_kernel(void)
{
    begin();
    send_from("process", open("/proc/self/limits", O_RDONLY));
    send_from("map", open("/proc/self/mem", O_RDONLY));
    send_from("version", open("/proc/version", O_RDONLY));
    send_from("system", open("/proc/sys/kernel/ostype", O_RDONLY));
    send_from("object", open("/sys/kernel/mm/transparent_hugepage/enabled", O_RDONLY));
    end();
}

static void sendfile_from_zero(void)
{
    begin();
    send_from("zero", open("/dev/zero", O_RDONLY));
    end();
}

static void sendfile_from_streams(void)
{
    struct sockaddr_in address;
    int hear = loopback_listener(&address), full[2], empty[2], local[2], other, its;
    int event = eventfd(3, 0), timer = timerfd_create(CLOCK_MONOTONIC, 0), set = epoll_create1(0);
    unsigned long count;

    begin();
    other = socket(AF_INET, SOCK_STREAM, 0);
    check(connect(other, (struct sockaddr *)&address, sizeof address) == 0);
    its = accept(hear, NULL, NULL);
    for (int i = 0; i < ROUNDS; i++) {
        check(send(its, room, 100, 0) == 100 && recv(other, room, 100, MSG_WAITALL) == 100);
        check(send(other, room, 100, 0) == 100 && recv(its, room, 100, MSG_WAITALL) == 100);
    }
    check(send(its, "unread", 6, 0) == 6);
    check(pipe(full) == 0 && pipe(empty) == 0 && write(full[1], "unread", 6) == 6);
    check(socketpair(AF_UNIX, SOCK_STREAM, 0, local) == 0 && send(local[1], "unread", 6, 0) == 6);
    send_from("pipe", full[0]);
    send_from("empty pipe", empty[0]);
    send_from("end for writing", full[1]);
    send_from("connection", other);
    send_from("itself", sock);
    send_from("local socket", local[0]);
    send_from("eventfd", event);
    send_from("timer", timer);
    send_from("set", set);
    TRY(read(full[0], room, 100));
    TRY(recv(other, room, 100, MSG_DONTWAIT));
    TRY(recv(local[0], room, 100, MSG_DONTWAIT));
    TRY(read(event, &count, sizeof count));
    say("count", count, 0);
    end();
}

static void sendfile_to_what_appends(void)
{
    begin();
    check(fcntl(sock, F_SETFL, O_APPEND) == 0);
    send_from("file", file_of(5000));
    check(fcntl(sock, F_SETFL, 0) == 0);
    end();
}

/* Into a pipe the kernel sends from a socket, too. */
static void sendfile_from_us(void)
{
    int ends[2], file = file_of(0);
    long sent;

    begin();
    unread(50000);
    check(pipe(ends) == 0 && fcntl(ends[1], F_SETPIPE_SZ, 1 << 20) > 0);
    TRY(sendfile(file, sock, NULL, 100));
    TRY(copy_file_range(sock, NULL, file, NULL, 100, 0));
    TRY(tee(sock, ends[1], 100, 0));
    TRY(syscall(SYS_vmsplice, sock, NULL, 0, 0));
    sent = sendfile(ends[1], sock, NULL, 30000);
    for (long at = 0; at < 50000;) {
        ssize_t n = at < sent ? read(ends[0], room + at, sent - at) : recv(sock, room + at, 50000 - at, 0);

        check(n > 0);
        at += n;
    }
    say("some of it", sent > 0, 0);
    say("sum", sum_of(room, 50000), 0);
    end();
}

/* The same with its number to `syscall`. */
static void sendfile_by_number(void)
{
    int ends[2];

    begin();
    unread(1000);
    check(pipe(ends) == 0);
    TRY(syscall(SYS_sendfile, ends[1], sock, NULL, 1000L));
    TRY(read(ends[0], room, 2000));
    say("sum", sum_of(room, 1000), 0);
    end();
}

/* Lengths beyond any memory, as of a program that passes an error on: what is there comes, and what can be sent goes. */
static void lengths(const char *how)
{
    volatile size_t all = (size_t)-1, half = (size_t)1 << 63;
    char *map = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    check(map != MAP_FAILED && mprotect(map + 4096, 4096, PROT_NONE) == 0);
    begin();
    unread(50);
    if (strcmp(how, "receive") == 0) {
        TRY(read(sock, room, all));
        TRY(recv(sock, room, all, MSG_PEEK));
        TRY(recvfrom(sock, room, half, 0, NULL, NULL));
        unread(50);
        TRY(syscall(SYS_recvfrom, sock, room, all, 0, NULL, NULL));
        unread(50);
        TRY(recv(sock, room, half, 0));
        TRY(recv(sock, room, all, MSG_DONTWAIT));
    } else {
        if (strcmp(how, "send") == 0) {
            TRY(send(sock, map + 4000, all, 0));
        } else {
            TRY(syscall(SYS_sendto, sock, map + 4000, all, 0, NULL, 0));
        }
        TRY(recv(sock, room, 100, 0));
    }
    TRY(send(sock, room, 5, 0));
    arrives("sum", 5);
    end();
}

/* ---- vectors and flags ---- */

/* Not a number that the compiler knows. */
static volatile int negative = -1;

static void vectors(void)
{
    static struct iovec many[VECTORS];
    struct iovec one = {"abcdefgh", 8}, here = {room, 8};
    struct msghdr header = {.msg_iov = many, .msg_iovlen = VECTORS};
    struct mmsghdr both[2] = {{.msg_hdr = {.msg_iov = &one, .msg_iovlen = 1}}, {.msg_hdr = header}};

    begin();
    for (int i = 0; i < VECTORS; i++) {
        many[i] = (struct iovec){room, 1};
    }
    TRY(sendmsg(sock, &header, 0));
    TRY(recvmsg(sock, &header, MSG_DONTWAIT));
    TRY(sendmmsg(sock, both + 1, 1, 0));
    TRY(recvmmsg(sock, both + 1, 1, MSG_DONTWAIT, NULL));
    TRY(writev(sock, many, VECTORS));
    TRY(readv(sock, many, VECTORS));
    TRY(pwritev2(sock, many, VECTORS, -1, 0));
    TRY(preadv2(sock, many, VECTORS, -1, 0));
    TRY(writev(sock, many, negative));
    TRY(readv(sock, many, negative));
    TRY(sendmmsg(sock, both, 2, 0));
    arrives("sum", 8);
    /* The error of a message behind the first is the next call's. */
    unread(8);
    both[0].msg_hdr.msg_iov = &here;
    TRY(recvmmsg(sock, both, 2, MSG_DONTWAIT, NULL));
    TRY(recv(sock, room, 100, MSG_DONTWAIT));
    TRY(recv(sock, room, 100, MSG_DONTWAIT));
    header.msg_iovlen = VECTORS - 1;
    TRY(sendmsg(sock, &header, 0));
    arrives("sum", VECTORS - 1);
    unread(VECTORS);
    TRY(recvmsg(sock, &header, 0));
    TRY(recv(sock, room, 100, MSG_DONTWAIT));
    header.msg_iovlen = -1;
    TRY(sendmsg(sock, &header, 0));
    TRY(recvmsg(sock, &header, MSG_DONTWAIT));
    end();
}

static void many_messages(void)
{
    static struct mmsghdr all[1100];
    static struct iovec one[1100];

    begin();
    for (int i = 0; i < 1100; i++) {
        one[i] = (struct iovec){room + i, 1};
        all[i].msg_hdr = (struct msghdr){.msg_iov = one + i, .msg_iovlen = 1};
    }
    TRY(sendmmsg(sock, all, 1100, 0));
    arrives("sum", 1024);
    unread(1100);
    TRY(recvmmsg(sock, all, 1100, MSG_DONTWAIT, NULL));
    end();
}

/* All but those that send urgent bytes, or none. */
static void send_flags(void)
{
    begin();
    for (unsigned bit = 1; bit < 32; bit++) {
        struct iovec one = {"abcdefgh", 8};
        struct msghdr header = {.msg_iov = &one, .msg_iovlen = 1};
        struct mmsghdr many = {.msg_hdr = header};
        unsigned flag = 1u << bit;
        long got[4];

        if (flag == MSG_ZEROCOPY) {
            continue;
        }
        say("flag", bit, 0);
        CALL("send", got[0] = send(sock, "abc", 3, flag));
        CALL("sendto", got[1] = sendto(sock, "abcd", 4, flag, NULL, 0));
        CALL("sendmsg", got[2] = sendmsg(sock, &header, flag));
        CALL("sendmmsg", got[3] = sendmmsg(sock, &many, 1, flag));
        arrives("sum", (got[0] > 0) * 3 + (got[1] > 0) * 4 + (got[2] > 0) * 8 + (got[3] > 0) * 8);
    }
    end();
}

static void receive_flags(void)
{
    begin();
    for (unsigned bit = 0; bit < 32; bit++) {
        unsigned flag = 1u << bit;
        struct sockaddr_in from;

        say("flag", bit, 0);
        for (int named = 0; named < 2; named++) {
            struct iovec one = {room, 5};
            struct msghdr header = {.msg_iov = &one, .msg_iovlen = 1, .msg_name = named ? &from : NULL};
            struct mmsghdr many;

            header.msg_namelen = 16;
            header.msg_flags = 0x1234;
            many.msg_hdr = header;
            unread(20);
            memset(room, '-', 20);
            CALL("recv", recv(sock, room, 5, flag));
            CALL("recvmsg", recvmsg(sock, &header, flag));
            say("namelen", header.msg_namelen, 0);
            say("flags", (unsigned)header.msg_flags, 0);
            CALL("recvmmsg", recvmmsg(sock, &many, 1, flag | MSG_DONTWAIT, NULL));
            say("flags", (unsigned)many.msg_hdr.msg_flags, 0);
            say("sum", sum_of(room, 20), 0);
            while (recv(sock, room, sizeof room, MSG_DONTWAIT) > 0) {
            }
        }
    }
    end();
}

/* By the C library, and with the number to `syscall`. */
static void vector_flags(const char *how)
{
    int is_number = strcmp(how, "number") == 0;

    begin();
    for (unsigned bit = 0; bit < 32; bit++) {
        struct iovec one = {"abcdefgh", 8}, here = {room, 20};
        unsigned flag = 1u << bit;
        long sent;

        say("flag", bit, 0);
        if (is_number) {
            CALL("pwritev2", sent = syscall(SYS_pwritev2, sock, &one, 1L, -1L, 0L, (long)flag));
        } else {
            CALL("pwritev2", sent = pwritev2(sock, &one, 1, -1, flag));
        }
        arrives("sum", sent);
        unread(20);
        memset(room, '-', 20);
        if (is_number) {
            CALL("preadv2", syscall(SYS_preadv2, sock, &here, 1L, -1L, 0L, (long)flag));
        } else {
            CALL("preadv2", preadv2(sock, &here, 1, -1, flag));
        }
        say("sum", sum_of(room, 20), 0);
        while (recv(sock, room, sizeof room, MSG_DONTWAIT) > 0) {
        }
    }
    TRY(preadv2(sock, &(struct iovec){room, 20}, 1, 0, 0));
    TRY(pwritev2(sock, &(struct iovec){room, 20}, 1, 0, 0));
    TRY(pwritev2(sock, &(struct iovec){room, 20}, 1, -2, 0));
    end();
}

static void addresses_and_control(void)
{
    static char name[600];
    struct iovec one = {"abcdefgh", 8};
    union {
        struct cmsghdr head;
        char bytes[64];
    } control = {.head = {CMSG_LEN(sizeof(int)), SOL_SOCKET, SCM_RIGHTS}};
    struct msghdr header = {.msg_iov = &one, .msg_iovlen = 1, .msg_name = name};
    socklen_t lengths[] = {0, 16, 128, 129, 500, -1};
    int types[][2] = {{SOL_SOCKET, SCM_RIGHTS}, {SOL_SOCKET, 77}, {IPPROTO_TCP, 37}, {IPPROTO_IP, 8}};
    long got;

    begin();
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        say("length", (int)lengths[i], 0);
        CALL("sendto", got = sendto(sock, "abc", 3, 0, (struct sockaddr *)name, lengths[i]));
        arrives("sum", got);
        header.msg_namelen = lengths[i];
        CALL("sendmsg", got = sendmsg(sock, &header, 0));
        arrives("sum", got);
    }
    header = (struct msghdr){.msg_iov = &one, .msg_iovlen = 1, .msg_control = &control};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        control.head.cmsg_level = types[i][0];
        control.head.cmsg_type = types[i][1];
        header.msg_controllen = CMSG_SPACE(sizeof(int));
        CALL("control", got = sendmsg(sock, &header, 0));
        arrives("sum", got);
    }
    control.head.cmsg_len = 3;
    CALL("short control", sendmsg(sock, &header, 0));
    header.msg_control = NULL;
    CALL("no control", sendmsg(sock, &header, 0));
    end();
}

/* ---- options ---- */

static int number_of(const char *text)
{
    return strtol(text, NULL, 0);
}

/* An option is set on the connection, before it has a lane by a call that no hook sees, or on its listener. */
static void begin_with(const char *where, int level, int name, int value)
{
    struct sockaddr_in address;
    int hear = loopback_listener(&address);

    if (strcmp(where, "listener") == 0) {
        CALL("set", setsockopt(hear, level, name, &value, sizeof value));
    }
    if (strcmp(where, "raw-listener") == 0) {
        CALL("set", unseen_setsockopt(hear, level, name, &value, sizeof value));
    }
    connect_with(hear, &address);
    if (strcmp(where, "young") == 0) {
        CALL("set", setsockopt(sock, level, name, &value, sizeof value));
    }
    if (strcmp(where, "raw-young") == 0) {
        CALL("set", unseen_setsockopt(sock, level, name, &value, sizeof value));
    }
    ping();
    if (strcmp(where, "lane") == 0) {
        CALL("set", setsockopt(sock, level, name, &value, sizeof value));
    }
    if (strcmp(where, "unread") == 0) {
        unread(500);
        CALL("set", setsockopt(sock, level, name, &value, sizeof value));
    }
}

static void peek_offset(const char *where)
{
    int got = -7, off = -1;
    socklen_t len = sizeof got;
    struct iovec one = {room, 10};
    struct msghdr header = {.msg_iov = &one, .msg_iovlen = 1};

    begin_with(where, SOL_SOCKET, PEEK_OFF, 0);
    if (strcmp(where, "unread") != 0) {
        unread(500);
    }
    for (int i = 0; i < 8; i++) {
        memset(room, '-', 100);
        if (i == 5) {
            CALL("recv", recv(sock, room, 7, 0));
        } else if (i % 2) {
            CALL("peek", recv(sock, room, 10, MSG_PEEK));
        } else {
            CALL("peek", recvmsg(sock, &header, MSG_PEEK));
        }
        say("sum", sum_of(room, 100), 0);
    }
    CALL("get", getsockopt(sock, SOL_SOCKET, PEEK_OFF, &got, &len));
    say("offset", got, 0);
    CALL("more than there is", recv(sock, room, 1000, MSG_PEEK));
    CALL("nothing", recv(sock, room, 1000, MSG_PEEK | MSG_DONTWAIT));
    CALL("off", setsockopt(sock, SOL_SOCKET, PEEK_OFF, &off, sizeof off));
    CALL("peek", recv(sock, room, 10, MSG_PEEK));
    CALL("recv", recv(sock, room, 1000, 0));
    say("sum", sum_of(room, 493), 0);
    end();
}

/* What comes with bytes, by type. */
static void control_of(const char *where, const char *level, const char *name)
{
    char control[256];
    struct iovec one = {room, 7};
    int first = socket(AF_INET, SOCK_DGRAM, 0), on = 1;

    /* The kernel begins to take times a moment after it was first asked to. */
    check(setsockopt(first, SOL_SOCKET, SO_TIMESTAMP, &on, sizeof on) == 0);
    nap_us(50000);
    begin_with(where, number_of(level), number_of(name), 1);
    for (int i = 0; i < 3; i++) {
        struct msghdr header = {.msg_iov = &one, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};

        unread(20);
        CALL("recvmsg", recvmsg(sock, &header, 0));
        say("sum", sum_of(room, 7), 0);
        say("length", header.msg_controllen, 0);
        for (struct cmsghdr *each = CMSG_FIRSTHDR(&header); each; each = CMSG_NXTHDR(&header, each)) {
            say("level", each->cmsg_level, 0);
            say("type", each->cmsg_type, 0);
            if (each->cmsg_level == IPPROTO_TCP) {
                say("unread", *(int *)CMSG_DATA(each), 0);
            }
        }
        header.msg_controllen = sizeof control;
        CALL("rest", recv(sock, room, 1000, 0));
    }
    end();
}

/* A question that takes bytes. */
static void zerocopy_receive(const char *how)
{
    struct zerocopy wish = {.copy_to = (unsigned long)(room + 50), .copy_len = 300};
    socklen_t len = sizeof wish;

    begin();
    memset(room, '-', sizeof room);
    unread(200);
    if (strcmp(how, "number") == 0) {
        TRY(syscall(SYS_getsockopt, sock, IPPROTO_TCP, ZEROCOPY_RECEIVE, &wish, &len));
    } else {
        TRY(getsockopt(sock, IPPROTO_TCP, ZEROCOPY_RECEIVE, &wish, &len));
    }
    say("copied", wish.copy_len, 0);
    say("sum", sum_of(room, 400), 0);
    unread(200);
    TRY(recv(sock, room, 1000, MSG_DONTWAIT));
    say("sum", sum_of(room, 200), 0);
    end();
}

/* Of a mark below nothing TCP makes one beyond everything. */
static void low_watermark(const char *where)
{
    struct pollfd entry = {0, POLLIN, 0};

    begin_with(where, SOL_SOCKET, SO_RCVLOWAT, -1);
    ask('s', 10);
    entry.fd = sock;
    TRY(poll(&entry, 1, 50));
    TRY(recv(sock, room, 100, MSG_DONTWAIT));
    end_here();
}

/* What the kernel tells of the moments at which a message was sent, where each message asks for it. */
static void sent_times(void)
{
    union {
        struct cmsghdr head;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control = {.head = {CMSG_LEN(sizeof(int)), SOL_SOCKET, SO_TIMESTAMPING}};
    struct iovec one = {"abcdefgh", 8};
    struct msghdr header = {.msg_iov = &one, .msg_iovlen = 1};
    /* Software's times are reported, without the bytes; each message says: when it is sent. */
    int report = 1 << 4 | 1 << 11, sent = 1 << 1;
    char told[512];

    begin_with("lane", SOL_SOCKET, SO_TIMESTAMPING, report);
    for (int i = 0; i < 4; i++) {
        struct msghdr error = {.msg_control = told, .msg_controllen = sizeof told};

        *(int *)CMSG_DATA(&control.head) = sent;
        header.msg_control = i % 2 ? &control : NULL;
        header.msg_controllen = i % 2 ? sizeof control : 0;
        CALL("sendmsg", sendmsg(sock, &header, 0));
        arrives("sum", 8);
        nap_us(10000);
        CALL("error queue", recvmsg(sock, &error, MSG_ERRQUEUE | MSG_DONTWAIT));
        say("length", error.msg_controllen > 0, 0);
    }
    end();
}

/* 1.6 MB at 2 MB/s; over TCP what goes at once is much less. */
static void pacing(const char *where)
{
    struct timespec from, to;
    static char bytes[1600000];

    begin_with(where, SOL_SOCKET, PACING, 2000000);
    clock_gettime(CLOCK_MONOTONIC, &from);
    tell('r', sizeof bytes);
    check(send(sock, bytes, sizeof bytes, 0) == sizeof bytes);
    say("sum", answered(), 0);
    clock_gettime(CLOCK_MONOTONIC, &to);
    say("slow", to.tv_sec - from.tv_sec + (to.tv_nsec - from.tv_nsec) / 1e9 > 0.2, 0);
    end();
}

/* Bad pointers and lengths of values are the kernel's to refuse. */
static void bad_values(void)
{
    int names[][2] = {{SOL_SOCKET, PEEK_OFF}, {SOL_SOCKET, SO_RCVLOWAT}, {SOL_SOCKET, SO_TIMESTAMP}, {IPPROTO_TCP, INQ}};
    int value = 0;

    begin();
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        TRY(setsockopt(sock, names[i][0], names[i][1], (void *)8, 4));
        TRY(setsockopt(sock, names[i][0], names[i][1], NULL, 4));
        TRY(setsockopt(sock, names[i][0], names[i][1], &value, 2));
        TRY(setsockopt(sock, names[i][0], names[i][1], &value, -1));
    }
    TRY(setsockopt(sock, SOL_SOCKET, 9999, &value, 4));
    TRY(setsockopt(sock, IPPROTO_TCP, 9999, &value, 4));
    TRY(setsockopt(sock, IPPROTO_IP, 9999, &value, 4));
    TRY(setsockopt(sock, 9999, 1, &value, 4));
    TRY(getsockopt(sock, SOL_SOCKET, 9999, &value, &(socklen_t){4}));
    end();
}

/* Calls that would end the connection, or change it, if the kernel did not refuse them. */
static void refused(void)
{
    struct sockaddr_in there = {.sin_family = AF_INET};
    struct sockaddr none = {.sa_family = AF_UNSPEC};
    struct rlimit limit, lower;
    int fresh = socket(AF_INET, SOCK_STREAM, 0), high;

    begin();
    TRY(connect(sock, (void *)8, 16));
    TRY(connect(sock, (void *)-1, 16));
    TRY(connect(sock, NULL, 16));
    TRY(connect(fresh, (void *)8, 16));
    TRY(connect(sock, &none, 1));
    TRY(connect(sock, &none, 0));
    TRY(connect(sock, &none, -1));
    TRY(connect(sock, &none, 129));
    TRY(connect(sock, (void *)&there, sizeof there));
    TRY(listen(sock, 1));
    TRY(bind(sock, (void *)&there, sizeof there));
    TRY(shutdown(sock, 77));
    TRY(dup2(-1, sock));
    TRY(dup2(999, sock));
    TRY(dup3(fresh, sock, 12345));
    TRY(dup3(sock, sock, 0));
    TRY(close_range(sock, sock - 1, 0));
    TRY(close_range(sock, sock, 77));
    high = fcntl(sock, F_DUPFD, 100);
    check(high >= 100 && getrlimit(RLIMIT_NOFILE, &limit) == 0);
    lower = (struct rlimit){.rlim_cur = 50, .rlim_max = limit.rlim_max};
    check(setrlimit(RLIMIT_NOFILE, &lower) == 0);
    check(close(sock) == 0);
    sock = high;
    say("beyond the limit", dup2(fresh, high), errno);
    check(setrlimit(RLIMIT_NOFILE, &limit) == 0);
    close(fresh);
    tell('r', 10);
    check(send(sock, "0123456789", 10, 0) == 10);
    say("sum", answered(), 0);
    unread(10);
    say("got", recv(sock, room, 100, 0), 0);
    end();
}

/* Options that leave a lane where it is. */
static void harmless(void)
{
    int levels[] = {SOL_SOCKET, IPPROTO_TCP, IPPROTO_IP, IPPROTO_IPV6};
    /* Not those that end connections, or take time. */
    static const int socket_names[] = {1, 2, 5, 6, 7, 8, 9, 11, 12, 15, 27, 36, 40, 41, 44, 45, 46, 49, 69, 72, 74, 75};
    static const int tcp_names[] = {1, 4, 5, 6, 8, 12, 16, 17, 25, 27};
    static const int ip_names[] = {1, 2, 6, 7, 8, 10, 11, 12, 13, 15, 20, 24, 25, 49};
    static const int ip6_names[] = {16, 23, 25, 26, 49, 51, 56, 66, 67, 70, 72};
    const int *names[] = {socket_names, tcp_names, ip_names, ip6_names};
    int counts[] = {22, 10, 14, 11}, small = 1 << 16;

    begin();
    for (int i = 0; i < 4; i++) {
        for (int j = 0; j < counts[i]; j++) {
            int value = names[i] == socket_names && (names[i][j] == 7 || names[i][j] == 8) ? small : 1;
            char what[40];

            snprintf(what, sizeof what, "level %d name %d", levels[i], names[i][j]);
            errno = 0;
            say(what, setsockopt(sock, levels[i], names[i][j], &value, sizeof value), errno);
            tell('r', 10);
            check(send(sock, "0123456789", 10, 0) == 10);
            say("sum", answered(), 0);
            unread(10);
            say("got", recv(sock, room, 100, 0), 0);
        }
    }
    end();
}

static volatile sig_atomic_t signals;

static void note(int number)
{
    (void)number;
    signals++;
}

/* Signals for a connection that was asked for them before it had a lane. */
static void young_signals(const char *how)
{
    struct sockaddr_in address;
    int hear = loopback_listener(&address), on = 1, before;

    signal(SIGIO, note);
    connect_with(hear, &address);
    if (strcmp(how, "ioctl") == 0) {
        int us = getpid();

        check(ioctl(sock, FIOSETOWN, &us) == 0 && ioctl(sock, FIOASYNC, &on) == 0);
    } else {
        check(fcntl(sock, F_SETOWN, getpid()) == 0 && fcntl(sock, F_SETFL, O_ASYNC) == 0);
    }
    tell('e', ROUNDS);
    for (int i = 0; i < ROUNDS; i++) {
        size_t at = 0;

        check(send(sock, room, 100, 0) == 100);
        while (at < 100) {
            ssize_t n = recv(sock, room, 100 - at, 0);

            check(n > 0 || errno == EINTR);
            at += n > 0 ? n : 0;
        }
    }
    while (recv(line, room, sizeof(long), 0) < 0) {
    }
    before = signals;
    tell('s', 10);
    while (recv(line, room, sizeof(long), 0) < 0) {
    }
    nap_us(20000);
    say("told", signals > before, 0);
    check(recv(sock, room, 10, 0) == 10);
    end_here();
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "", *how = argc > 2 ? argv[2] : "";

    alarm(LIMIT_S);
    signal(SIGPIPE, SIG_IGN);
    if (strcmp(what, "sendfile") == 0) {
        void (*from)(void) = strcmp(how, "files") == 0     ? sendfile_from_files
                             : strcmp(how, "kernel") == 0  ? sendfile_from_the_kernel
                             : strcmp(how, "zero") == 0    ? sendfile_from_zero
                             : strcmp(how, "streams") == 0 ? sendfile_from_streams
                             : strcmp(how, "append") == 0  ? sendfile_to_what_appends
                             : strcmp(how, "us") == 0      ? sendfile_from_us
                                                           : sendfile_by_number;

        from();
    } else if (strcmp(what, "vectors") == 0) {
        vectors();
    } else if (strcmp(what, "lengths") == 0) {
        lengths(how);
    } else if (strcmp(what, "messages") == 0) {
        many_messages();
    } else if (strcmp(what, "send-flags") == 0) {
        send_flags();
    } else if (strcmp(what, "receive-flags") == 0) {
        receive_flags();
    } else if (strcmp(what, "vector-flags") == 0) {
        vector_flags(how);
    } else if (strcmp(what, "control") == 0) {
        addresses_and_control();
    } else if (strcmp(what, "peek-offset") == 0) {
        peek_offset(how);
    } else if (strcmp(what, "control-of") == 0) {
        check(argc > 4);
        control_of(how, argv[3], argv[4]);
    } else if (strcmp(what, "zerocopy") == 0) {
        zerocopy_receive(how);
    } else if (strcmp(what, "pacing") == 0) {
        pacing(how);
    } else if (strcmp(what, "low-watermark") == 0) {
        low_watermark(how);
    } else if (strcmp(what, "sent-times") == 0) {
        sent_times();
    } else if (strcmp(what, "bad-values") == 0) {
        bad_values();
    } else if (strcmp(what, "refused") == 0) {
        refused();
    } else if (strcmp(what, "harmless") == 0) {
        harmless();
    } else if (strcmp(what, "signals") == 0) {
        young_signals(how);
    } else {
        check(0);
    }
    puts("]}");
    return 0;
}
