/* Handlers of `pthread_atfork` take the program's lock, under which another thread uses the connection and an epoll set:
 * what a fork does to the connection must not be in the way of the thread that the handler waits for.
 *
 *   atfork_lock HOW    fork or pty (`forkpty`), with handlers that lock; one line of JSON
 */
#include "ends.h"

#include <pty.h>
#include <sys/epoll.h>

#define FORKS 100
/* How many of them shall find the lock held, and how many forks may be made for that. */
#define MET 20
#define MOST 10000

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static atomic_int is_over;
/* Whether the handler wants the lock: a mutex is not fair, and who holds it most of the time may keep it for ever. */
static atomic_int is_wanted;
/* How often the handler found the lock held. */
static int met;

static void take(void)
{
    pthread_mutex_lock(&mutex);
}

static void take_from_worker(void)
{
    is_wanted = 1;
    if (pthread_mutex_trylock(&mutex) != 0) {
        met++;
        take();
    }
    is_wanted = 0;
}

static void give(void)
{
    pthread_mutex_unlock(&mutex);
}

static void *work(void *nothing)
{
    struct epoll_event event = {.events = EPOLLIN};
    int set = epoll_create1(0);

    while (!is_over) {
        take();
        check(epoll_ctl(set, EPOLL_CTL_ADD, sock, &event) == 0);
        tell('s', 100);
        check(epoll_wait(set, &event, 1, -1) == 1);
        check(receive_pattern(sock, &theirs, 100) == 100);
        answered();
        check(epoll_ctl(set, EPOLL_CTL_DEL, sock, NULL) == 0);
        give();
        while (is_wanted) {
            nap_us(100);
        }
    }
    return nothing;
}

int main(int argc, char **argv)
{
    pthread_t worker;

    check(argc == 2);
    alarm(LIMIT_S);
    connect_to_child();
    ping(20);
    check(pthread_atfork(take_from_worker, give, give) == 0);
    check(pthread_create(&worker, NULL, work, NULL) == 0);
    for (int i = 0; i < FORKS || (met < MET && i < MOST); i++) {
        int terminal, status;
        pid_t pid = strcmp(argv[1], "pty") == 0 ? forkpty(&terminal, NULL, NULL, NULL) : fork();

        check(pid >= 0);
        if (pid == 0) {
            _exit(0);
        }
        check(waitpid(pid, &status, 0) == pid && status == 0);
        if (strcmp(argv[1], "pty") == 0) {
            close(terminal);
        }
    }
    check(met >= MET);
    is_over = 1;
    check(pthread_join(worker, NULL) == 0);
    ping(20);
    printf("{");
    finish();
    printf("\"forks\": %d}\n", FORKS);
    return 0;
}
