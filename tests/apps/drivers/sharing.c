// A server whose two processes read requests from one and the same connection, whoever comes first, and its client.
// The server answers the first requests alone, as one that forks later does.
//
// usage: sharing server PORT | sharing client PORT REQUESTS
//
// The client sends one message of 64 B after the other and waits for each answer, which must be the message. It prints
// the seconds that this took, and how many answers each process of the server gave.

#include <arpa/inet.h>
#include <err.h>
#include <limits.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define LENGTH 64
#define WORKERS 2
#define ALONE 200

static struct sockaddr_in address(const char *port)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(port))};
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return to;
}

static int stream(void)
{
    int s = socket(AF_INET, SOCK_STREAM, 0), on = 1;
    if (s < 0 || setsockopt(s, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) != 0)
        err(1, "socket");
    return s;
}

// A request is in one piece: nothing is sent before it was answered. At most `most` of them.
static void work(int s, unsigned char worker, long most)
{
    unsigned char message[LENGTH];
    ssize_t n = LENGTH;
    while (most-- > 0 && (n = read(s, message, sizeof message)) == LENGTH) {
        message[LENGTH - 1] = worker;
        if (write(s, message, sizeof message) != LENGTH)
            err(1, "write");
    }
    if (n != 0 && n != LENGTH)
        err(1, "read: %zd", n);
}

static int serve(const char *port)
{
    int listener = stream(), on = 1, status;
    struct sockaddr_in to = address(port);
    if (setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0
        || bind(listener, (struct sockaddr *)&to, sizeof to) != 0 || listen(listener, 4) != 0)
        err(1, "listener");
    for (;;) {
        int s = accept(listener, NULL, NULL);
        if (s < 0)
            err(1, "accept");
        work(s, 0, ALONE);
        for (int i = 0; i < WORKERS; i++) {
            pid_t pid = fork();
            if (pid < 0)
                err(1, "fork");
            if (pid == 0) {
                work(s, (unsigned char)i, LONG_MAX);
                _exit(0);
            }
        }
        close(s);
        for (int i = 0; i < WORKERS; i++)
            if (wait(&status) < 0 || status != 0)
                errx(1, "a worker ended with %d", status);
    }
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void ask(const char *port, int requests)
{
    unsigned char out[LENGTH], in[LENGTH];
    struct sockaddr_in to = address(port);
    int s = stream(), answers[WORKERS] = {0};
    double begin;
    if (connect(s, (struct sockaddr *)&to, sizeof to) != 0)
        err(1, "connect");
    begin = now();
    for (int r = 0; r < requests; r++) {
        memset(out, r, sizeof out);
        if (write(s, out, sizeof out) != LENGTH)
            err(1, "write");
        for (size_t got = 0; got < sizeof in;) {
            ssize_t n = read(s, in + got, sizeof in - got);
            if (n <= 0)
                err(1, "read");
            got += (size_t)n;
        }
        if (memcmp(in, out, LENGTH - 1) != 0 || in[LENGTH - 1] >= WORKERS)
            errx(1, "answer %d is another", r);
        answers[in[LENGTH - 1]]++;
    }
    printf("%f s, answers %d and %d\n", now() - begin, answers[0], answers[1]);
}

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "server") == 0)
        return serve(argv[2]);
    if (argc != 4 || strcmp(argv[1], "client") != 0)
        errx(2, "usage: sharing server PORT | sharing client PORT REQUESTS");
    ask(argv[2], atoi(argv[3]));
    return 0;
}
