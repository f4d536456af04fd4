/* Threads that share a connection.
 *
 *   threads close HOW CALL     a thread sleeps in CALL, another closes the number (close, dup2, range)
 *   threads ended HOW CALL     the same, and then the peer ends the connection
 *   threads wait HOW CALL      the same in poll, select and epoll_wait
 *   threads storm              send, recv, poll, shutdown and close of one descriptor all at once
 *   threads readers N          N threads receive by various calls what one sends
 *   threads shut CALL          a thread sleeps in CALL, another shuts the connection down
 *   threads records MAX N      N threads send records of up to MAX bytes, one call each
 *   threads cancel CALL        a thread is cancelled in CALL beside one that goes on
 *   threads cancel accept      and accept4, connect: before there is a connection
 *   threads cancel close       with SO_LINGER, while bytes are on their way
 *
 * Prints one line of JSON: what the program saw. Where that is not the kernel's to choose, it is checked
 * here instead.
 */
#include "ends.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/uio.h>

#define BIG (8L << 20)

/* One call of another thread. */
static struct {
    pthread_t thread;
    const char *call;
    int fd, set;
    atomic_int tid;
    long result;
    int error;
    int event;
    char room[16];
} other;

static char *bulk;

static void *calls(void *unused)
{
    const char *call = other.call;
    struct iovec vector = {other.room, 10};
    struct iovec all = {bulk, BIG};
    struct msghdr in = {.msg_iov = &vector, .msg_iovlen = 1}, out = {.msg_iov = &all, .msg_iovlen = 1};
    struct mmsghdr many = {.msg_hdr = in}, much = {.msg_hdr = out};
    struct pollfd entry = {other.fd, POLLIN, 0};
    struct epoll_event event = {0};
    struct sockaddr_in address = {.sin_family = AF_INET};
    socklen_t len = sizeof address;
    fd_set set;

    FD_ZERO(&set);
    FD_SET(other.fd, &set);
    other.tid = thread_id();
    errno = 0;
    if (!strcmp(call, "recv")) {
        other.result = recv(other.fd, other.room, 10, 0);
    } else if (!strcmp(call, "read")) {
        other.result = read(other.fd, other.room, 10);
    } else if (!strcmp(call, "readv")) {
        other.result = readv(other.fd, &vector, 1);
    } else if (!strcmp(call, "recvfrom")) {
        other.result = recvfrom(other.fd, other.room, 10, 0, (struct sockaddr *)&address, &len);
    } else if (!strcmp(call, "recvmsg")) {
        other.result = recvmsg(other.fd, &in, 0);
    } else if (!strcmp(call, "recvmmsg")) {
        other.result = recvmmsg(other.fd, &many, 1, 0, NULL);
    } else if (!strcmp(call, "waitall")) {
        other.result = recv(other.fd, other.room, 10, MSG_WAITALL);
    } else if (!strcmp(call, "send")) {
        other.result = send(other.fd, bulk, BIG, MSG_NOSIGNAL);
    } else if (!strcmp(call, "sendto")) {
        other.result = sendto(other.fd, bulk, BIG, MSG_NOSIGNAL, NULL, 0);
    } else if (!strcmp(call, "splice")) {
        other.result = splice(other.fd, NULL, other.set, NULL, 10, 0);
    } else if (!strcmp(call, "close")) {
        other.result = close(other.fd);
    } else if (!strcmp(call, "write")) {
        other.result = write(other.fd, bulk, BIG);
    } else if (!strcmp(call, "writev")) {
        other.result = writev(other.fd, &all, 1);
    } else if (!strcmp(call, "sendmsg")) {
        other.result = sendmsg(other.fd, &out, MSG_NOSIGNAL);
    } else if (!strcmp(call, "sendmmsg")) {
        other.result = sendmmsg(other.fd, &much, 1, MSG_NOSIGNAL);
    } else if (!strcmp(call, "poll")) {
        other.result = poll(&entry, 1, -1);
        other.event = entry.revents;
    } else if (!strcmp(call, "ppoll")) {
        other.result = ppoll(&entry, 1, NULL, NULL);
        other.event = entry.revents;
    } else if (!strcmp(call, "select")) {
        other.result = select(other.fd + 1, &set, NULL, NULL, NULL);
    } else if (!strcmp(call, "pselect")) {
        other.result = pselect(other.fd + 1, &set, NULL, NULL, NULL, NULL);
    } else if (!strcmp(call, "epoll_wait")) {
        other.result = epoll_wait(other.set, &event, 1, -1);
        other.event = event.data.fd == other.fd;
    } else if (!strcmp(call, "epoll_pwait")) {
        other.result = epoll_pwait(other.set, &event, 1, -1, NULL);
    } else if (!strcmp(call, "epoll_pwait2")) {
        other.result = epoll_pwait2(other.set, &event, 1, NULL, NULL);
    } else if (!strcmp(call, "accept4")) {
        other.result = accept4(other.fd, NULL, NULL, SOCK_CLOEXEC);
    } else if (!strcmp(call, "accept")) {
        other.result = accept(other.fd, NULL, NULL);
    } else if (!strcmp(call, "connect")) {
        check(getsockname(other.set, (struct sockaddr *)&address, &len) == 0);
        other.result = connect(other.fd, (struct sockaddr *)&address, len);
    } else {
        check(!"a call");
    }
    other.error = errno;
    return unused;
}

static void begin(const char *call)
{
    other.call = call;
    other.tid = 0;
    other.result = -2;
    other.error = 0;
    check(pthread_create(&other.thread, NULL, calls, NULL) == 0);
    until_asleep(&other.tid);
}

static int is_sending(const char *call)
{
    return call[0] == 'w' ? strcmp(call, "waitall") != 0 : !strncmp(call, "send", 4);
}

/* Takes the number away, and gives it to something else. */
static void take_away(const char *how, int fd)
{
    int null = open("/dev/null", O_RDWR);

    check(null >= 0);
    if (!strcmp(how, "dup2")) {
        check(dup2(null, fd) == fd);
    } else if (!strcmp(how, "dup3")) {
        check(dup3(null, fd, O_CLOEXEC) == fd);
    } else {
        if (!strcmp(how, "range")) {
            check(close_range(fd, fd, 0) == 0);
        } else {
            check(close(fd) == 0);
        }
        check(dup2(null, fd) == fd);
    }
    close(null);
}

/* What a second call of the same kind on the number says: it is the null device now. */
static const char *again(void)
{
    char byte;

    return recv(other.fd, &byte, 1, MSG_DONTWAIT) < 0 ? strerrorname_np(errno) : "bytes";
}

static void close_under(const char *how, const char *call)
{
    int sends = is_sending(call);
    struct answer before, last;
    long end;

    connect_to_child();
    other.fd = sock;
    fill(bulk, 0, BIG);
    begin(call);
    take_away(how, sock);
    before = ask('p', 0);
    if (sends) {
        check(ask('r', BIG).n == BIG);
    } else {
        tell('s', 5);
        if (!strcmp(call, "waitall")) {
            answered();
            until_asleep(&other.tid);
            tell('s', 5);
        }
        answered();
    }
    check(pthread_join(other.thread, NULL) == 0);
    if (!strcmp(call, "sendmmsg") || !strcmp(call, "recvmmsg")) {
        end = other.result;
    } else {
        end = other.result == BIG ? 8 : other.result;
        check(sends || is_pattern(other.room, 0, other.result > 0 ? other.result : 0));
    }
    last = ask('q', 0);
    printf("{\"open\": %d, \"result\": %ld, \"error\": %d, \"again\": \"%s\", \"end\": [%ld, %d]}\n",
           sends || before.n == 0, end, other.error, again(), last.n, last.error);
    dismiss();
}

static void ended_under(const char *how, const char *call)
{
    connect_to_child();
    other.fd = sock;
    begin(call);
    take_away(how, sock);
    ask('c', 0);
    check(pthread_join(other.thread, NULL) == 0);
    printf("{\"result\": %ld, \"error\": %d}\n", other.result, other.error);
    dismiss();
}

static void wait_under(const char *how, const char *call)
{
    struct epoll_event event = {.events = EPOLLIN};
    int bell = eventfd(0, 0), has_end = 0;
    unsigned long one = 1;

    connect_to_child();
    other.fd = sock;
    other.set = epoll_create1(0);
    event.data.fd = sock;
    check(epoll_ctl(other.set, EPOLL_CTL_ADD, sock, &event) == 0);
    event.data.fd = bell;
    check(epoll_ctl(other.set, EPOLL_CTL_ADD, bell, &event) == 0);
    if (strcmp(call, "epoll_wait") != 0) {
        close(other.set); /* or the set would go on looking at it */
    }
    begin(call);
    take_away(how, sock);
    if (strcmp(call, "epoll_wait") != 0) {
        ask('s', 5);
    } else {
        /* Nothing holds the connection: it is gone, and gone from the set. */
        struct answer last = ask('q', 0);

        has_end = last.n == 0 && last.error == 0;
        check(write(bell, &one, sizeof one) == sizeof one);
    }
    check(pthread_join(other.thread, NULL) == 0);
    printf("{\"result\": %ld, \"error\": %d, \"event\": %d, \"end\": %d}\n", other.result,
           other.error, other.event, has_end);
    dismiss();
}

static void shut_under(const char *call)
{
    struct epoll_event event = {.events = EPOLLIN | EPOLLRDHUP};

    connect_to_child();
    other.fd = sock;
    other.set = epoll_create1(0);
    event.data.fd = sock;
    check(epoll_ctl(other.set, EPOLL_CTL_ADD, sock, &event) == 0);
    fill(bulk, 0, BIG);
    begin(call);
    check(shutdown(sock, is_sending(call) ? SHUT_WR : SHUT_RDWR) == 0);
    if (is_sending(call)) {
        /* How much had gone is the buffers' to say; all of it arrives, then the end. */
        struct answer last = ask('q', 0);

        check(pthread_join(other.thread, NULL) == 0);
        check(other.result > 0 && other.result < BIG && last.n == other.result && !last.error);
        other.result = 1;
    } else {
        check(pthread_join(other.thread, NULL) == 0);
    }
    printf("{\"result\": %ld, \"error\": %d, \"event\": %d}\n", other.result,
           other.result < 0 ? other.error : 0, other.event);
    close(sock);
    dismiss();
}

#include "storm.h"

/* ---- readers ---- */

#define READERS_MAX 16
#define WORD 8

static char *words;
static long words_bytes, taken;
static unsigned char *is_taken;
static pthread_mutex_t book = PTHREAD_MUTEX_INITIALIZER;
/* Bytes that came in pieces too small to tell where they belong. */
static long histogram[256];

/* Words that tell their own place in any fifteen bytes: a mark, and their number in seven bytes without a mark. */
static void make_words(long bytes)
{
    words_bytes = bytes;
    words = malloc(bytes);
    is_taken = calloc(bytes, 1);
    check(words && is_taken);
    for (long at = 0; at < bytes; at += WORD) {
        words[at] = (char)0xff;
        for (int i = 1; i < WORD; i++) {
            words[at + i] = at / WORD >> 7 * (WORD - 1 - i) & 127;
        }
    }
}

/* A piece that one call got is a piece of the stream, and nobody else has got any of it. */
static void takes_piece(const char *from, long n)
{
    const char *mark = memchr(from, 0xff, n);

    check(pthread_mutex_lock(&book) == 0);
    taken += n;
    if (mark && n - (mark - from) >= WORD) {
        long at = 0;

        for (int i = 1; i < WORD; i++) {
            at = at << 7 | mark[i];
        }
        at = at * WORD - (mark - from);
        check(at >= 0 && at + n <= words_bytes && memcmp(from, words + at, n) == 0);
        check(memchr(is_taken + at, 1, n) == NULL);
        memset(is_taken + at, 1, n);
    } else {
        for (long i = 0; i < n; i++) {
            histogram[(unsigned char)from[i]]++;
        }
    }
    check(pthread_mutex_unlock(&book) == 0);
}

static void *reads_words(void *number)
{
    unsigned seed = (long)number;
    struct pollfd entry = {sock, POLLIN, 0};
    char *room = malloc(40000);
    ssize_t n;

    check(room);
    do {
        size_t most = rand_r(&seed) % 4 ? WORD + rand_r(&seed) % 3000 : WORD + rand_r(&seed) % 39000;
        struct iovec parts[2] = {{room, most / 3}, {room + most / 3, most - most / 3}};
        struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
        fd_set set;

        switch ((long)number % 6) {
        case 0:
            n = recv(sock, room, most, 0);
            break;
        case 1:
            n = read(sock, room, most);
            break;
        case 2:
            n = readv(sock, parts, 2);
            break;
        case 3:
            n = recvmsg(sock, &message, 0);
            break;
        case 4:
            check(poll(&entry, 1, -1) == 1);
            n = recv(sock, room, most, MSG_DONTWAIT);
            break;
        default:
            FD_ZERO(&set);
            FD_SET(sock, &set);
            check(select(sock + 1, &set, NULL, NULL, NULL) == 1);
            n = recv(sock, room, most, MSG_DONTWAIT);
        }
        check(n >= 0 || errno == EAGAIN);
        if (n > 0) {
            takes_piece(room, n);
        }
    } while (n != 0);
    free(room);
    return NULL;
}

static void readers(int count)
{
    pthread_t threads[READERS_MAX];
    struct sockaddr_in address;
    int hear = loopback_listener(&address), status;
    static long missing[256];

    check(count <= READERS_MAX);
    make_words(24L << 20);
    child = fork();
    check(child >= 0);
    if (child == 0) {
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        unsigned seed = 1;

        alarm(LIMIT_S);
        check(connect(fd, (struct sockaddr *)&address, sizeof address) == 0);
        storm_echo(fd, WARM, 0);
        for (long at = 0, n; at < words_bytes; at += n) {
            /* Now and then the readers have to wait. */
            n = rand_r(&seed) % 4 ? 1 + rand_r(&seed) % 2000 : 1 + rand_r(&seed) % 60000;
            n = n < words_bytes - at ? n : words_bytes - at;
            check(send(fd, words + at, n, MSG_NOSIGNAL) == n);
        }
        exit(0);
    }
    sock = accept(hear, NULL, NULL);
    check(sock >= 0);
    storm_echo(sock, WARM, 1);
    for (long i = 0; i < count; i++) {
        check(pthread_create(&threads[i], NULL, reads_words, (void *)i) == 0);
    }
    for (int i = 0; i < count; i++) {
        check(pthread_join(threads[i], NULL) == 0);
    }
    check(waitpid(child, &status, 0) == child && status == 0);
    check(taken == words_bytes);
    for (long at = 0; at < words_bytes; at++) {
        missing[(unsigned char)words[at]] += !is_taken[at];
    }
    check(memcmp(missing, histogram, sizeof missing) == 0);
    close(sock);
    puts("{\"fine\": true}");
}

/* ---- records ---- */

#define SENDERS_MAX 8
#define HEAD 12

static int most, senders;
static atomic_int next_sender;

struct record {
    unsigned magic, who, len;
    char rest[1 << 18];
};

static void *sends_records(void *bytes)
{
    struct record *record = malloc(sizeof *record);
    unsigned who = next_sender++, seed = who;
    long left = *(long *)bytes;

    check(record);
    memset(record->rest, 'a' + who, sizeof record->rest);
    record->magic = 0x5eC0adU;
    record->who = who;
    while (left > 0) {
        /* Many small ones, and some of every size. */
        unsigned len = rand_r(&seed) % 4 ? rand_r(&seed) % 2000 : rand_r(&seed) % most;

        record->len = len;
        check(send(sock, record, HEAD + len, MSG_NOSIGNAL) == (ssize_t)(HEAD + len));
        left -= HEAD + len;
    }
    free(record);
    return NULL;
}

static int exactly(int fd, char *to, size_t n)
{
    size_t got = 0;

    while (got < n) {
        ssize_t more = recv(fd, to + got, n - got, 0);

        check(more >= 0);
        if (more == 0) {
            return 0;
        }
        got += more;
    }
    return 1;
}

/* The number of records that have another's bytes in them: at the first nothing more can be told. */
static int count_torn(int fd)
{
    static struct record record;
    unsigned seed = 1;

    while (exactly(fd, (char *)&record, HEAD)) {
        if (record.magic != 0x5eC0adU || record.who >= SENDERS_MAX || record.len > sizeof record.rest
            || !exactly(fd, record.rest, record.len)) {
            return 1;
        }
        for (unsigned i = 0; i < record.len; i++) {
            if (record.rest[i] != (char)('a' + record.who)) {
                return 1;
            }
        }
        if (rand_r(&seed) % 256 == 0) {
            nap_us(2000); /* the buffers fill */
        }
    }
    return 0;
}

static void records(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET};
    socklen_t len = sizeof address;
    int hear = socket(AF_INET, SOCK_STREAM, 0), status;
    pthread_t threads[SENDERS_MAX];
    static char warm[1 << 18];
    long bytes = (24L << 20) / senders;

    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    check(bind(hear, (struct sockaddr *)&address, len) == 0 && listen(hear, 1) == 0);
    check(getsockname(hear, (struct sockaddr *)&address, &len) == 0);
    child = fork();
    check(child >= 0);
    if (child == 0) {
        int fd = socket(AF_INET, SOCK_STREAM, 0), torn;

        alarm(LIMIT_S);
        check(connect(fd, (struct sockaddr *)&address, len) == 0);
        check(exactly(fd, warm, sizeof warm));
        check(send(fd, warm, 1, 0) == 1);
        torn = count_torn(fd);
        while (torn && recv(fd, warm, sizeof warm, 0) > 0) {
        }
        exit(torn);
    }
    sock = accept(hear, NULL, NULL);
    check(sock >= 0);
    /* On its lane before the first record. */
    for (unsigned at = 0; at < sizeof warm; at += 1024) {
        check(send(sock, warm, 1024, 0) == 1024);
    }
    check(exactly(sock, warm, 1));
    for (int i = 0; i < senders; i++) {
        check(pthread_create(&threads[i], NULL, sends_records, &bytes) == 0);
    }
    for (int i = 0; i < senders; i++) {
        check(pthread_join(threads[i], NULL) == 0);
    }
    close(sock);
    check(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) < 2);
    printf("{\"torn\": %d}\n", WEXITSTATUS(status));
}

/* ---- cancel ---- */

static atomic_int beside_tid, beside_stop;
static atomic_long beside_got;

/* Receives beside the thread that is cancelled. */
static void *beside(void *unused)
{
    char room[64];

    beside_tid = thread_id();
    while (!beside_stop) {
        ssize_t n = recv(sock, room, sizeof room, 0);

        check(n > 0);
        beside_got += n;
    }
    return unused;
}

static void cancelled(void)
{
    void *result;

    check(pthread_cancel(other.thread) == 0);
    check(pthread_join(other.thread, &result) == 0);
    check(result == PTHREAD_CANCELED);
}

static void cancel(const char *call)
{
    struct epoll_event event = {.events = EPOLLIN};
    int sends = is_sending(call), rounds = sends ? 1 : 20, before = 0;
    pthread_t thread;

    connect_to_child();
    other.fd = sock;
    other.set = epoll_create1(0);
    check(epoll_ctl(other.set, EPOLL_CTL_ADD, sock, &event) == 0);
    fill(bulk, 0, BIG);
    for (int i = 0; i < rounds; i++) {
        if (i == 5) {
            before = descriptors();
        }
        begin(call);
        cancelled();
        if (!sends) {
            ping(3);
        }
    }
    /* What a cancelled thread had in use was given back. */
    check(sends || descriptors() <= before + 1);
    if (sends) {
        /* What the cancelled call had sent is a beginning of the pattern; the end follows. */
        struct answer last;

        close(other.set);
        close(sock);
        last = ask('q', 0);
        check(last.n > 0 && last.n < BIG && last.error == 0);
        dismiss();
    } else {
        /* Another thread sleeps in recv while one is cancelled beside it. */
        check(pthread_create(&thread, NULL, beside, NULL) == 0);
        until_asleep(&beside_tid);
        begin(call);
        cancelled();
        check(ask('s', 50).n == 0);
        while (beside_got < 50) {
            nap_us(1000);
        }
        until_asleep(&beside_tid);
        beside_stop = 1;
        ask('s', 10);
        check(pthread_join(thread, NULL) == 0 && beside_got == 60);
        ping(100);
        close(other.set);
        finish();
    }
    puts("{\"fine\": true}");
}

/* A cancelled splice leaves the pipe as it was. The connection has left its lane. */
static void cancel_splice(void)
{
    int ends[2];

    connect_to_child();
    ping(100);
    check(pipe(ends) == 0);
    other.fd = sock, other.set = ends[1];
    begin("splice");
    cancelled();
    check(fcntl(ends[0], F_SETFL, O_NONBLOCK) == 0);
    check(read(ends[0], other.room, 1) < 0 && errno == EAGAIN);
    ping(100);
    finish();
    puts("{\"fine\": true}");
}

/* Nothing of what was sent is lost with the close that was left. */
static void cancel_close(void)
{
    struct linger linger = {1, LIMIT_S};
    struct answer last;
    ssize_t n;

    connect_to_child();
    fill(bulk, 0, BIG);
    check(setsockopt(sock, SOL_SOCKET, SO_LINGER, &linger, sizeof linger) == 0);
    /* Nobody has seen this end wait for room: what the ring has no room for goes over TCP, until nothing is taken. */
    while ((n = send(sock, bulk + ours, BIG - ours, MSG_DONTWAIT | MSG_NOSIGNAL)) > 0) {
        ours += n;
    }
    check(n < 0 && errno == EAGAIN);
    other.fd = sock;
    begin("close");
    cancelled();
    check(fcntl(sock, F_GETFD) < 0 && errno == EBADF);
    last = ask('q', 0);
    check(last.n == ours && last.error == 0);
    dismiss();
    puts("{\"fine\": true}");
}

static void cancel_meeting(const char *call)
{
    struct sockaddr_in address = {.sin_family = AF_INET};
    socklen_t len = sizeof address;
    int hear = socket(AF_INET, SOCK_STREAM, 0), fds[64], n = 0, is_accept = call[0] == 'a';

    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    check(bind(hear, (struct sockaddr *)&address, len) == 0 && listen(hear, 0) == 0);
    check(getsockname(hear, (struct sockaddr *)&address, &len) == 0);
    if (!is_accept) {
        /* Until the backlog is full, so that the next one waits. */
        for (n = 0; n < 64; n++) {
            fds[n] = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
            struct pollfd entry = {fds[n], POLLOUT, 0};

            connect(fds[n], (struct sockaddr *)&address, len);
            if (poll(&entry, 1, 300) == 0) {
                n++;
                break;
            }
        }
    }
    for (int i = 0; i < 3; i++) {
        other.set = hear;
        other.fd = is_accept ? hear : socket(AF_INET, SOCK_STREAM, 0);
        begin(call);
        cancelled();
        if (!is_accept) {
            close(other.fd);
        }
    }
    for (int i = 0; i < n; i++) {
        close(fds[i]);
    }
    close(hear);
    connect_to_child();
    ping(100);
    finish();
    puts("{\"fine\": true}");
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "";

    signal(SIGPIPE, SIG_IGN);
    alarm(LIMIT_S);
    bulk = malloc(BIG);
    check(bulk);
    if (!strcmp(what, "close") && argc > 3) {
        close_under(argv[2], argv[3]);
    } else if (!strcmp(what, "ended") && argc > 3) {
        ended_under(argv[2], argv[3]);
    } else if (!strcmp(what, "wait") && argc > 3) {
        wait_under(argv[2], argv[3]);
    } else if (!strcmp(what, "shut") && argc > 2) {
        shut_under(argv[2]);
    } else if (!strcmp(what, "storm")) {
        storm();
    } else if (!strcmp(what, "readers") && argc > 2) {
        readers(atoi(argv[2]));
    } else if (!strcmp(what, "records") && argc > 3) {
        most = atoi(argv[2]), senders = atoi(argv[3]);
        check(senders <= SENDERS_MAX && most <= 1 << 18);
        records();
    } else if (!strcmp(what, "cancel") && argc > 2) {
        if (!strncmp(argv[2], "accept", 6) || !strcmp(argv[2], "connect")) {
            cancel_meeting(argv[2]);
        } else if (!strcmp(argv[2], "splice")) {
            cancel_splice();
        } else if (!strcmp(argv[2], "close")) {
            cancel_close();
        } else {
            cancel(argv[2]);
        }
    } else {
        return 2;
    }
    return 0;
}
