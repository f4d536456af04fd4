/* A part of threads.c: many threads send, receive, wait and close on one connection at the same time. */

/* Round trips before a storm begins. */
#define WARM 60
#define STORM_SENDERS 2

static atomic_int is_over, next_storm;

static void storm_check(ssize_t n)
{
    int ok = n >= 0 || errno == EBADF || errno == EPIPE || errno == ECONNRESET || errno == EAGAIN
             || errno == ENOTCONN || errno == ESHUTDOWN || errno == EINVAL;

    check(ok);
}

/* Each sender's bytes count up, and say whose they are. */
static char storm_byte(int who, long at)
{
    return (char)(who << 7 | at % 127);
}

static void *storm_send(void *fd)
{
    static char room[STORM_SENDERS][20000 + 127];
    int who = next_storm++ % STORM_SENDERS;
    long at = 0;

    for (int i = 0; i < (int)sizeof room[who]; i++) {
        room[who][i] = storm_byte(who, i);
    }
    while (!is_over) {
        ssize_t n = send(*(int *)fd, room[who] + at % 127, rand() % 2 ? 100 : 20000, MSG_NOSIGNAL);

        storm_check(n);
        if (n < 0) {
            break;
        }
        at += n;
    }
    return fd;
}

static void *storm_receive(void *fd)
{
    char room[3000];

    while (!is_over) {
        ssize_t n = recv(*(int *)fd, room, sizeof room, 0);

        storm_check(n);
        if (n <= 0) {
            break;
        }
    }
    return fd;
}

static void *storm_poll(void *fd)
{
    while (!is_over) {
        struct pollfd entry = {*(int *)fd, POLLIN | POLLOUT, 0};

        check(poll(&entry, 1, 10) >= 0);
        if (entry.revents & (POLLNVAL | POLLHUP | POLLERR)) {
            break;
        }
    }
    return fd;
}

static void *storm_close(void *fd)
{
    while (is_over == 0) {
        nap_us(100);
    }
    int closed = close(*(int *)fd) == 0;

    check(closed || errno == EBADF);
    return closed ? fd : NULL;
}

static void storm_echo(int fd, int times, int is_first)
{
    char room[100] = {0};

    for (int i = 0; i < times; i++) {
        if (is_first) {
            check(send(fd, room, sizeof room, MSG_NOSIGNAL) == sizeof room);
        }
        check(recv(fd, room, sizeof room, MSG_WAITALL) == sizeof room);
        if (!is_first) {
            check(send(fd, room, sizeof room, MSG_NOSIGNAL) == sizeof room);
        }
    }
}

/* The peer of a storm: sends something back for what comes, until the end. Whatever a sender's neighbours and the
 * closers do, its bytes come in its order, and none is missing before the last. */
static pid_t storm_peer(int *fd)
{
    struct sockaddr_in address = {.sin_family = AF_INET};
    socklen_t len = sizeof address;
    int hear = socket(AF_INET, SOCK_STREAM, 0);
    pid_t peer;

    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    check(bind(hear, (struct sockaddr *)&address, len) == 0 && listen(hear, 1) == 0);
    check(getsockname(hear, (struct sockaddr *)&address, &len) == 0);
    peer = fork();
    check(peer >= 0);
    if (peer == 0) {
        static char room[65536];
        long next[STORM_SENDERS] = {0};
        int end = socket(AF_INET, SOCK_STREAM, 0);
        ssize_t n;

        alarm(LIMIT_S);
        check(connect(end, (struct sockaddr *)&address, len) == 0);
        storm_echo(end, WARM, 0);
        while ((n = recv(end, room, sizeof room, 0)) > 0) {
            for (ssize_t i = 0; i < n; i++) {
                int who = (unsigned char)room[i] >> 7;

                check(room[i] == storm_byte(who, next[who]));
                next[who]++;
            }
            /* So little that no ring is full of it. */
            if (send(end, room, n < 200 ? n : 200, MSG_NOSIGNAL | MSG_DONTWAIT) < 0 && errno != EAGAIN) {
                break;
            }
        }
        exit(0);
    }
    *fd = accept(hear, NULL, NULL);
    check(*fd >= 0);
    close(hear);
    storm_echo(*fd, WARM, 1);
    return peer;
}

static void storm(void)
{
    void *(*const bodies[])(void *) = {storm_send, storm_send, storm_receive, storm_receive,
                                       storm_poll, storm_close, storm_close};
    enum { N = sizeof bodies / sizeof *bodies };

    for (int round = 0; round < 12; round++) {
        pthread_t threads[N];
        int fd, status, closed = 0, is_killed = 0;
        pid_t peer = storm_peer(&fd);

        is_over = 0;
        for (int i = 0; i < N; i++) {
            check(pthread_create(&threads[i], NULL, bodies[i], &fd) == 0);
        }
        nap_us(1000 + rand() % 20000);
        /* Receivers wake up, senders fail; the closers then close while calls are in progress. */
        if (round % 2) {
            check(shutdown(fd, SHUT_RDWR) == 0);
            is_over = 1;
        } else {
            is_over = 1;
            if (shutdown(fd, SHUT_RDWR) < 0) {
                /* A close was first, and the socket lives on in the receivers' calls: only the peer can end it. */
                check(errno == EBADF && kill(peer, SIGTERM) == 0);
                is_killed = 1;
            }
        }
        for (int i = 0; i < N; i++) {
            void *result;

            check(pthread_join(threads[i], &result) == 0);
            closed += bodies[i] == storm_close && result;
        }
        check(closed == 1);
        check(waitpid(peer, &status, 0) == peer && (status == 0 || (is_killed && status == SIGTERM)));
    }
    /* And the process is as good as before. */
    connect_to_child();
    finish();
    puts("{\"fine\": true}");
}
