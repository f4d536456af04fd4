/* A program that closes or takes over every number that is not its own, the library's among them: nothing of the
 * library's comes into its files, and who sleeps at the other end is woken.
 *
 * usage: woken_numbers closed | taken; prints what came into the program's eventfds, and how many messages were answered late
 */
#include "ends.h"

#include <sys/eventfd.h>

#define ROUNDS 30
#define HIGHEST 256
#define LATE_MS 90

static int own[HIGHEST], files;

static int is_own(int fd)
{
    return fd <= 2 || fd == sock || fd == line;
}

/* As daemons do; then eventfds of the program's get all these numbers. */
static void close_all_and_fill(void)
{
    for (int fd = 3; fd < HIGHEST; fd++) {
        if (!is_own(fd)) {
            close(fd);
        }
    }
    for (int fd; (fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) < HIGHEST - 1;) {
        check(fd >= 0);
        own[files++] = fd;
    }
}

/* What is in the program's files that it did not write. */
static long strange(void)
{
    long sum = 0;

    for (int i = 0; i < files; i++) {
        uint64_t count = 0;

        if (read(own[i], &count, sizeof count) == sizeof count) {
            sum += count;
        }
    }
    return sum;
}

static long now_ms(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* A message to a reader that has fallen asleep, and its answer. */
static int is_late(void)
{
    char text[100] = "message";
    long began;

    nap_us(3000);
    began = now_ms();
    check(send(sock, text, sizeof text, MSG_NOSIGNAL) == sizeof text);
    check(recv(sock, text, sizeof text, MSG_WAITALL) == sizeof text);
    return now_ms() - began >= LATE_MS;
}

static atomic_int is_over;

/* Takes number after number for an eventfd of the program's, and gives it back. */
static void *take_numbers(void *unused)
{
    (void)unused;
    while (!is_over) {
        for (int fd = 3; fd < HIGHEST && !is_over; fd++) {
            if (!is_own(fd) && fd != own[0]) {
                dup2(own[0], fd);
                close(fd);
            }
        }
    }
    return NULL;
}

int main(int argc, char **argv)
{
    int late = 0, taken = argc > 1 && strcmp(argv[1], "taken") == 0;
    pthread_t taker;

    alarm(LIMIT_S);
    connect_to_child();
    if (taken) {
        own[files++] = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
        check(pthread_create(&taker, NULL, take_numbers, NULL) == 0);
        tell('e', 10 * ROUNDS);
        for (int i = 0; i < 10 * ROUNDS; i++) {
            late += is_late();
        }
        answered();
        is_over = 1;
        check(pthread_join(taker, NULL) == 0);
    } else {
        close_all_and_fill();
        tell('e', ROUNDS);
        for (int i = 0; i < ROUNDS; i++) {
            late += is_late();
        }
        answered();
    }
    printf("{\"strange\": %ld, \"late\": %s}\n", strange(), late > ROUNDS / 10 ? "true" : "false");
    fflush(stdout);
    finish();
    return 0;
}
