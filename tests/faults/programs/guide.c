/* A TCP program as the guides of SDP convert them: an echo server, and a client that asks it. The test adds the guide's
 * one line and changes the family in `socket`; nothing else differs.
 *
 *     guide server        prints its port; serves one connection after the other
 *     guide client PORT   sends numbered lines, and compares what comes back
 */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define LINES 2000

static void fail(const char *what)
{
    perror(what);
    exit(1);
}

static void serve(void)
{
    struct sockaddr_in address;
    socklen_t len = sizeof address;
    char line[64];
    ssize_t n;
    int conn, fd = socket(AF_INET, SOCK_STREAM, 0);

    if (fd < 0) {
        fail("socket");
    }
    memset(&address, 0, sizeof address);
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (bind(fd, (struct sockaddr *)&address, sizeof address) < 0) {
        fail("bind");
    }
    if (listen(fd, 5) < 0) {
        fail("listen");
    }
    if (getsockname(fd, (struct sockaddr *)&address, &len) < 0) {
        fail("getsockname");
    }
    printf("%d\n", ntohs(address.sin_port));
    fflush(stdout);
    while ((conn = accept(fd, (struct sockaddr *)&address, &len)) >= 0) {
        while ((n = read(conn, line, sizeof line)) > 0) {
            if (write(conn, line, n) != n) {
                fail("write");
            }
        }
        close(conn);
    }
    fail("accept");
}

static void ask(int port)
{
    struct sockaddr_in address;
    char line[64], back[64];
    int fd = socket(AF_INET, SOCK_STREAM, 0);

    if (fd < 0) {
        fail("socket");
    }
    memset(&address, 0, sizeof address);
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = inet_addr("127.0.0.1");
    address.sin_port = htons(port);
    if (connect(fd, (struct sockaddr *)&address, sizeof address) < 0) {
        fail("connect");
    }
    for (int i = 0; i < LINES; i++) {
        int len = snprintf(line, sizeof line, "line %d\n", i), got = 0;

        if (write(fd, line, len) != len) {
            fail("write");
        }
        while (got < len) {
            ssize_t n = read(fd, back + got, len - got);

            if (n <= 0) {
                fail("read");
            }
            got += n;
        }
        if (memcmp(line, back, len) != 0) {
            fprintf(stderr, "line %d differs\n", i);
            exit(1);
        }
    }
    printf("%d lines came back\n", LINES);
    close(fd);
}

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "server") == 0) {
        serve();
    } else if (argc == 3) {
        ask(atoi(argv[2]));
    }
    return 0;
}
