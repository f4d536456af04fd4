// A server that forks for each connection, and its client, as such programs are written in C.
//
// usage: forking server PORT | forking client PORT CONNECTIONS MESSAGES LENGTH | forking paced PORT LENGTH
//
// The server's child owns the connection alone and echoes until the end of the stream. The client
// sends messages of up to LENGTH bytes on one connection after the other, compares each echo, and prints
// a sum of all of them. A paced client reads numbers of connections, one message each, and answers each number with
// the seconds that these took: for turns that alternate with another pair's.

#include <arpa/inet.h>
#include <err.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static struct sockaddr_in address(const char *port)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(port))};
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return to;
}

static int stream(void)
{
    int s = socket(AF_INET, SOCK_STREAM, 0);
    if (s < 0)
        err(1, "socket");
    return s;
}

static void send_all(int s, const unsigned char *data, size_t length)
{
    while (length > 0) {
        ssize_t n = write(s, data, length);
        if (n <= 0)
            err(1, "write");
        data += n;
        length -= (size_t)n;
    }
}

static void echo(int s)
{
    static unsigned char buffer[65536];
    ssize_t n;
    while ((n = read(s, buffer, sizeof buffer)) > 0)
        send_all(s, buffer, (size_t)n);
    if (n < 0)
        err(1, "read");
}

static int serve(const char *port)
{
    int listener = stream(), on = 1;
    struct sockaddr_in to = address(port);
    // Children are nobody's zombies.
    signal(SIGCHLD, SIG_IGN);
    if (setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0
        || bind(listener, (struct sockaddr *)&to, sizeof to) != 0 || listen(listener, 64) != 0)
        err(1, "listener");
    for (;;) {
        int s = accept(listener, NULL, NULL);
        if (s < 0)
            err(1, "accept");
        pid_t pid = fork();
        if (pid < 0)
            err(1, "fork");
        if (pid == 0) {
            close(listener);
            echo(s);
            close(s);
            _exit(0);
        }
        close(s);
    }
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static uint64_t talk(const char *port, int connections, int messages, int length, uint64_t *total)
{
    unsigned char *out = malloc((size_t)length), *in = malloc((size_t)length);
    struct sockaddr_in to = address(port);
    uint64_t state = 88172645463325252U, sum = 14695981039346656037U, bytes = 0;
    if (out == NULL || in == NULL)
        err(1, "malloc");
    for (int c = 0; c < connections; c++) {
        int s = stream();
        if (connect(s, (struct sockaddr *)&to, sizeof to) != 0)
            err(1, "connect");
        for (int m = 0; m < messages; m++) {
            // xorshift: lengths and bytes that differ each time, and are the same in each run.
            state ^= state << 13, state ^= state >> 7, state ^= state << 17;
            size_t want = 1 + (size_t)(state % (uint64_t)length);
            for (size_t i = 0; i < want; i++)
                out[i] = (unsigned char)((state >> (i % 57)) + i);
            send_all(s, out, want);
            for (size_t got = 0; got < want;) {
                ssize_t n = read(s, in + got, want - got);
                if (n <= 0)
                    err(1, "read: %zu of %zu of message %d", got, want, m);
                got += (size_t)n;
            }
            if (memcmp(out, in, want) != 0)
                errx(1, "message %d of connection %d came back changed", m, c);
            for (size_t i = 0; i < want; i++)
                sum = (sum ^ in[i]) * 1099511628211U;
            bytes += want;
        }
        shutdown(s, SHUT_WR);
        if (read(s, in, 1) != 0)
            errx(1, "something after the end");
        close(s);
    }
    free(out);
    free(in);
    *total = bytes;
    return sum;
}

static int paced(const char *port, int length)
{
    char line[32];
    uint64_t bytes;
    while (fgets(line, sizeof line, stdin) != NULL) {
        double begin = now();
        talk(port, atoi(line), 1, length, &bytes);
        printf("%.9f\n", now() - begin);
        fflush(stdout);
    }
    return 0;
}

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "server") == 0)
        return serve(argv[2]);
    if (argc == 6 && strcmp(argv[1], "client") == 0) {
        uint64_t bytes, sum = talk(argv[2], atoi(argv[3]), atoi(argv[4]), atoi(argv[5]), &bytes);
        printf("%llu bytes, sum %016llx\n", (unsigned long long)bytes, (unsigned long long)sum);
        return 0;
    }
    if (argc == 4 && strcmp(argv[1], "paced") == 0)
        return paced(argv[2], atoi(argv[3]));
    errx(2, "usage: forking server PORT | client PORT CONNECTIONS MESSAGES LENGTH | paced PORT LENGTH");
}
