/* What the parts share. */
#include "calls.h"

#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

void die(const char *what) {
    printf("failed: %s: %s\n", what, strerror(errno));
    exit(3);
}

void say(const char *what, long result) {
    int e = errno;
    printf("%s: %ld", what, result);
    if (result == -1) printf(" %s", strerrorname_np(e));
    printf("\n");
    errno = 0;
}

/* Every kind of pair: "unix" is never tracked, "tcp" is, "warm" has earned the other lane. */
void pair(const char *kind, int fds[2]) {
    if (!strcmp(kind, "unix")) {
        MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, fds));
        return;
    }
    int l = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof a;
    MUST(bind(l, (void *)&a, n));
    MUST(listen(l, 1));
    MUST(getsockname(l, (void *)&a, &n));
    fds[0] = socket(AF_INET, SOCK_STREAM, 0);
    MUST(connect(fds[0], (void *)&a, sizeof a));
    fds[1] = accept(l, 0, 0);
    MUST(fds[1]);
    close(l);
    if (!strcmp(kind, "warm")) {
        char c[64];
        for (int i = 0; i < 200; i++)
            for (int d = 0; d < 2; d++) {
                if (send(fds[d], c, sizeof c, 0) != sizeof c) die("warm send");
                if (recv(fds[1 - d], c, sizeof c, MSG_WAITALL) != sizeof c) die("warm recv");
            }
    }
}

int main(int argc, char **argv) {
    const char *c = argc > 1 ? argv[1] : "", *a = argc > 2 ? argv[2] : "", *b = argc > 3 ? argv[3] : "";
    setvbuf(stdout, 0, _IOLBF, 0);
    if (strcmp(c, "sandbox") && strcmp(c, "jump") && strcmp(c, "interrupts")) alarm(60);
    if (!strcmp(c, "errors")) return errors();
    if (!strcmp(c, "show")) return show(argc, argv);
    if (!strcmp(c, "exec")) return exec_list(argv[0], a, atoi(b));
    if (!strcmp(c, "vfork")) return vfork_closes(a);
    if (!strcmp(c, "cancel")) return cancelled(a, b);
    if (!strcmp(c, "actions")) return actions();
    if (!strcmp(c, "handlers")) return handlers();
    if (!strcmp(c, "storm")) return storm(a);
    if (!strcmp(c, "jump")) return jump(a);
    if (!strcmp(c, "interrupts")) return interrupts(a);
    if (!strcmp(c, "times")) return times(a);
    if (!strcmp(c, "many")) return many(a);
    if (!strcmp(c, "syscall")) return system_calls(a);
    if (!strcmp(c, "io_uring")) return io_uring();
    if (!strcmp(c, "forks")) return forks(a);
    if (!strcmp(c, "sandbox")) return sandbox(a, atoi(b));
    if (!strcmp(c, "numbers")) return numbers(a);
    if (!strcmp(c, "identity")) return identity(a);
    if (!strcmp(c, "reads")) return reads(atol(a));
    return 2;
}
