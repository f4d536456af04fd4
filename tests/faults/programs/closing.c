/* closing HOW ROUNDS: after some round trips one thread sends a message while another one closes the number: by `close`,
 * by `dup2` of something else onto it, or by `close_range`. The peer reads to the end. Prints in how many rounds the message came
 * though it was refused, or was sent and did not come, or anything else came, or no end did.
 */
#include "base.h"

#include <fcntl.h>

#define SIZE 1024
#define TRIPS 30
#define PATIENCE_S 5

enum { NOTHING, MESSAGE, ERROR, OTHER };

static atomic_int go;
static int delay, is_sent;
static char message[SIZE];

static void *send_then(void *fd)
{
    while (!go) {
    }
    for (volatile int i = 0; i < delay; i++) {
    }
    is_sent = send(*(int *)fd, message, SIZE, MSG_NOSIGNAL) == SIZE;
    return NULL;
}

static int read_to_end(int fd)
{
    char room[SIZE];
    ssize_t n = recv(fd, room, SIZE, MSG_WAITALL);

    if (n < 0) {
        return ERROR;
    }
    if (n == 0) {
        return NOTHING;
    }
    return n == SIZE && memcmp(room, message, SIZE) == 0 && recv(fd, room, 1, 0) == 0 ? MESSAGE : OTHER;
}

static void be_peer(const struct sockaddr_in *address)
{
    char room[SIZE];
    int fd = socket(AF_INET, SOCK_STREAM, 0);

    alarm(PATIENCE_S);
    check(connect(fd, (const void *)address, sizeof *address) == 0);
    for (int i = 0; i < TRIPS; i++) {
        check(send(fd, message, SIZE, 0) == SIZE && recv(fd, room, SIZE, MSG_WAITALL) == SIZE);
    }
    exit(read_to_end(fd));
}

static void close_by(const char *how, int fd, int other)
{
    if (strcmp(how, "dup2") == 0) {
        check(dup2(other, fd) == fd);
        check(close(fd) == 0);
    } else if (strcmp(how, "range") == 0) {
        check(close_range(fd, fd, 0) == 0);
    } else {
        check(close(fd) == 0);
    }
}

int main(int argc, char **argv)
{
    check(argc == 3);
    int rounds = atoi(argv[2]), null = open("/dev/null", O_RDWR);
    int refused = 0, lost = 0, odd = 0, hung = 0;

    memset(message, 'm', SIZE);
    for (int round = 0; round < rounds; round++) {
        struct sockaddr_in address;
        int hear = loopback_listener(&address), fd, status;
        char room[SIZE];
        pthread_t thread;
        pid_t child = fork();

        check(child >= 0);
        if (child == 0) {
            be_peer(&address);
        }
        fd = accept(hear, NULL, NULL);
        close(hear);
        for (int i = 0; i < TRIPS; i++) {
            check(recv(fd, room, SIZE, MSG_WAITALL) == SIZE && send(fd, room, SIZE, 0) == SIZE);
        }
        go = is_sent = 0;
        delay = round * 7 % 4000;
        check(pthread_create(&thread, NULL, send_then, &fd) == 0);
        nap_us(500);
        go = 1;
        close_by(argv[1], fd, null);
        check(pthread_join(thread, NULL) == 0);
        check(waitpid(child, &status, 0) == child);
        if (WIFSIGNALED(status)) {
            hung++;
        } else if (WEXITSTATUS(status) == MESSAGE) {
            refused += !is_sent;
        } else if (WEXITSTATUS(status) == NOTHING) {
            lost += is_sent;
        } else {
            odd++;
        }
    }
    printf("{\"refused\": %d, \"lost\": %d, \"odd\": %d, \"hung\": %d}\n", refused, lost, odd, hung);
    return 0;
}
