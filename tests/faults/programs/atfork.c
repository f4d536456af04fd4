/* Handlers of `pthread_atfork` that use the connection, in the parent and in the child, over two forks.
 *
 *   atfork HANDLER WHAT CHILD
 *
 * HANDLER: prepare, parent or child. WHAT it does: close (the child's copy), dup (and closes that), shut (both ways),
 * wend (shutdown for writing), send, poll, set (adds the connection to an epoll set and takes it out), over (dup2 onto
 * it), range (close_range), fork (a handler that forks). CHILD: how the child ends: exit or exec. One line of JSON: what the handler's calls gave, and what the connection is then. */
#include "ends.h"

#include <sys/epoll.h>

static const char *what;
static int given[16], times;
static int is_inside;

static void note(long result)
{
    if (times < (int)(sizeof given / sizeof *given)) {
        given[times++] = result < 0 ? -errno : (int)result;
    }
}

static void handle(void)
{
    struct pollfd entry = {sock, POLLIN | POLLOUT, 0};
    struct epoll_event event = {.events = EPOLLIN, .data = {.u64 = 1}};
    char byte = pattern(ours);
    int other;

    if (is_inside) {
        return;
    }
    if (!strcmp(what, "close")) {
        note(close(sock));
    } else if (!strcmp(what, "dup")) {
        other = dup(sock);
        check(other >= 0);
        note(close(other));
    } else if (!strcmp(what, "shut")) {
        note(shutdown(sock, SHUT_RDWR));
    } else if (!strcmp(what, "wend")) {
        note(shutdown(sock, SHUT_WR));
    } else if (!strcmp(what, "send")) {
        note(send(sock, &byte, 1, MSG_NOSIGNAL));
    } else if (!strcmp(what, "poll")) {
        note(poll(&entry, 1, 0) == 1 ? entry.revents : -1);
    } else if (!strcmp(what, "set")) {
        other = epoll_create1(0);
        note(epoll_ctl(other, EPOLL_CTL_ADD, sock, &event));
        note(epoll_ctl(other, EPOLL_CTL_DEL, sock, NULL));
        note(close(other));
    } else if (!strcmp(what, "over")) {
        other = open("/dev/null", O_RDWR);
        note(dup2(other, sock) == sock);
        note(close(other));
    } else if (!strcmp(what, "range")) {
        note(close_range(3, ~0u, 0));
    } else if (!strcmp(what, "fork")) {
        is_inside = 1;
        other = fork();
        if (other == 0) {
            _exit(0);
        }
        note(waitpid(other, NULL, 0) == other);
        is_inside = 0;
    }
}

int main(int argc, char **argv)
{
    struct answer heard;
    char room[100];
    long said = 0;

    check(argc == 4);
    alarm(LIMIT_S);
    signal(SIGPIPE, SIG_IGN);
    what = argv[2];
    connect_to_child();
    check(pthread_atfork(argv[1][1] == 'r' ? handle : NULL, argv[1][1] == 'a' ? handle : NULL,
                         argv[1][0] == 'c' ? handle : NULL) == 0);
    for (int round = 0; round < 2; round++) {
        pid_t pid = fork();
        int status;

        check(pid >= 0);
        if (pid == 0) {
            if (!strcmp(argv[3], "exec")) {
                execl("/bin/true", "true", NULL);
            }
            _exit(0);
        }
        check(waitpid(pid, &status, 0) == pid && status == 0);
        if (!strcmp(what, "send")) {
            /* In whichever process the handler ran. */
            heard = ask('r', 1);
            check(heard.n == 1);
            said++;
            ours++;
        } else if (strcmp(what, "shut") && strcmp(what, "wend")) {
            ping(5);
        }
    }
    if (!strcmp(what, "shut") || !strcmp(what, "wend")) {
        note(send(sock, room, 1, MSG_NOSIGNAL));
        heard = ask('q', 0);
        printf("{\"heard\": [%ld, %d], ", heard.n, heard.error);
        ask('c', 0);
        note(recv(sock, room, sizeof room, 0));
        close(sock);
        dismiss();
    } else {
        printf("{\"said\": %ld, ", said);
        finish();
    }
    printf("\"given\": [");
    for (int i = 0; i < times; i++) {
        printf("%s%d", i ? ", " : "", given[i]);
    }
    printf("]}\n");
    return 0;
}
