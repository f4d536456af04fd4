/* A part of handlers.c: SIGPIPE of each call that writes. */

static atomic_int pipes, strangers, writer;

static void on_pipe(int signum)
{
    (void)signum;
    pipes++;
    strangers += thread_id() != writer;
}

static ssize_t one_write(const char *how, int fd)
{
    static char some[10] = "0123456789";
    static int file = -1;
    struct iovec vector = {some, sizeof some};
    struct msghdr message = {.msg_iov = &vector, .msg_iovlen = 1};
    struct mmsghdr many = {.msg_hdr = message};

    if (!strcmp(how, "send")) {
        return send(fd, some, sizeof some, 0);
    } else if (!strcmp(how, "quiet")) {
        return send(fd, some, sizeof some, MSG_NOSIGNAL);
    } else if (!strcmp(how, "zero")) {
        return send(fd, some, 0, 0);
    } else if (!strcmp(how, "write")) {
        return write(fd, some, sizeof some);
    } else if (!strcmp(how, "writev")) {
        return writev(fd, &vector, 1);
    } else if (!strcmp(how, "sendmsg")) {
        return sendmsg(fd, &message, 0);
    } else if (!strcmp(how, "sendmmsg")) {
        return sendmmsg(fd, &many, 1, 0);
    }
    off_t at = 0;
    if (file < 0) {
        file = open("/proc/self/exe", O_RDONLY);
    }
    return sendfile(fd, file, &at, 10);
}

static void *writes(void *how)
{
    int signals_of[3];
    const char *errors[3];

    writer = thread_id();
    for (int i = 0; i < 3; i++) {
        ssize_t n;

        pipes = 0;
        n = one_write(how, sock);
        signals_of[i] = pipes;
        errors[i] = n < 0 ? strerrorname_np(errno) : n ? "sent" : "nothing";
    }
    printf("[\"%s\", \"%s\", \"%s\", %d, %d, %d]", errors[0], errors[1], errors[2], signals_of[0],
           signals_of[1], signals_of[2]);
    return how;
}

static void broken_pipe(char *how)
{
    pthread_t thread;

    handle(SIGPIPE, on_pipe, 0);
    printf("{");
    for (int kind = 0; kind < 2; kind++) {
        connect_to_child();
        if (kind) {
            check(shutdown(sock, SHUT_WR) == 0);
        } else {
            struct pollfd entry = {sock, POLLIN, 0};
            struct timespec moment = {0, 20000000};
            char first = 'x';

            /* The peer has closed, and has said so to a first byte. */
            ask('c', 0);
            check(poll(&entry, 1, -1) == 1);
            check(send(sock, &first, 1, MSG_NOSIGNAL) == 1);
            entry.events = 0;
            check(poll(&entry, 1, 10000) == 1 && entry.revents & POLLHUP);
            nanosleep(&moment, NULL);
        }
        printf("%s\"%s\": ", kind ? ", " : "", kind ? "shut" : "closed");
        check(pthread_create(&thread, NULL, writes, how) == 0);
        check(pthread_join(thread, NULL) == 0);
        close(sock);
        tell('x', 0);
        close(line);
        waitpid(child, NULL, 0);
    }
    printf(", \"strangers\": %d}\n", strangers);
}
