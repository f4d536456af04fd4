/* A handler sends in sends of the same connection, every 300 us: what it says stays whole, and so do the sends.
 *
 * Prints one line of JSON: whether all bytes of both came, and how many stood where they should not.
 */
#include "base.h"

#include <sys/time.h>

/* What the handler sends: a first byte that is nowhere else, and what follows it. */
#define SAID 20
#define ROUND 100

static int sock;
static volatile long by_handler;

static void says(int signum)
{
    static char text[SAID] = "hhhhhhhhhhhhhhhhhhh.";
    int saved = errno;

    (void)signum;
    check(send(sock, text, SAID, MSG_NOSIGNAL) == SAID);
    by_handler++;
    errno = saved;
}

/* The other end: round trips, then all up to the end. */
static void hears_records(struct sockaddr_in *address, int to)
{
    static char room[70000];
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    /* Bytes by main, words of the handler, and what stands where it should not. */
    long seen[3] = {0}, in_words = 0;
    ssize_t n;

    check(connect(fd, (struct sockaddr *)address, sizeof *address) == 0);
    for (int i = 0; i < 50; i++) {
        check(recv(fd, room, ROUND, MSG_WAITALL) == ROUND && send(fd, room, ROUND, 0) == ROUND);
    }
    while ((n = recv(fd, room, sizeof room, 0)) > 0) {
        for (ssize_t i = 0; i < n; i++) {
            if (in_words || room[i] == 'h') {
                in_words++;
                seen[2] += room[i] != (in_words < SAID ? 'h' : '.');
                if (in_words == SAID) {
                    in_words = 0;
                    seen[1]++;
                }
            } else {
                seen[0]++;
                seen[2] += room[i] != 'm';
            }
        }
    }
    check(n == 0 && in_words == 0);
    check(write(to, seen, sizeof seen) == sizeof seen);
    exit(0);
}

int main(void)
{
    struct sigaction action = {.sa_handler = says, .sa_flags = SA_RESTART};
    struct itimerval often = {{0, 300}, {0, 300}}, never = {{0, 0}, {0, 0}};
    static char text[65536];
    struct sockaddr_in address;
    pid_t child;
    int hear = loopback_listener(&address), way[2], status;
    long seen[3], rounds = 0;

    check(pipe(way) == 0);
    child = fork();
    if (child == 0) {
        alarm(50);
        hears_records(&address, way[1]);
    }
    sock = accept(hear, NULL, NULL);
    check(sock >= 0);
    for (int i = 0; i < 50; i++) {
        check(send(sock, text, ROUND, 0) == ROUND && recv(sock, text, ROUND, MSG_WAITALL) == ROUND);
    }
    memset(text, 'm', sizeof text);
    check(sigaction(SIGALRM, &action, NULL) == 0);
    check(setitimer(ITIMER_REAL, &often, NULL) == 0);
    while (rounds < 600 || by_handler < 100) {
        for (size_t at = 0; at < sizeof text;) {
            ssize_t n = send(sock, text + at, sizeof text - at, MSG_NOSIGNAL);

            check(n > 0 || (n < 0 && errno == EINTR));
            at += n > 0 ? n : 0;
        }
        rounds++;
    }
    check(setitimer(ITIMER_REAL, &never, NULL) == 0);
    check(shutdown(sock, SHUT_WR) == 0);
    check(read(way[0], seen, sizeof seen) == sizeof seen);
    check(waitpid(child, &status, 0) == child && status == 0);
    printf("{\"main\": %d, \"handler\": %d, \"torn\": %ld}\n", seen[0] == rounds * (long)sizeof text,
           seen[1] == by_handler, seen[2]);
}
