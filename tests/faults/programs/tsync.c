/* A seccomp filter for all threads, which allows just what the program itself does, while others are in calls.
 *
 *   tsync CALLS THREADS
 *
 * Each thread has a connection to an echoing child, and uses it with blocking calls, behind poll or behind
 * epoll (CALLS: block, poll, epoll). At a random moment one more thread installs a filter that kills for any other
 * system call; the rest goes on for a while. Prints one line of JSON.
 */
#include "ends.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/epoll.h>
#include <sys/prctl.h>

#define THREADS_MAX 16
#define ROUNDS_AFTER 200

static const char *calls;
static int threads, fds[THREADS_MAX], sets[THREADS_MAX];
static atomic_int is_confined;
static atomic_long rounds;

/* What this program asks for from then on: its calls, and what libc needs to end threads and process. */
static const int ALLOWED[] = {
    SYS_recvfrom, SYS_sendto, SYS_poll, SYS_epoll_wait, SYS_futex, SYS_exit, SYS_exit_group,
    SYS_clock_nanosleep, SYS_madvise, SYS_munmap, SYS_mmap, SYS_mprotect, SYS_rt_sigprocmask, SYS_write, SYS_wait4,
    SYS_fstat, SYS_newfstatat, SYS_shutdown, SYS_close, SYS_brk, SYS_set_robust_list, SYS_rseq,
};

static void confine(void)
{
    enum { N = sizeof ALLOWED / sizeof *ALLOWED };
    struct sock_filter filter[N + 3] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
    };
    struct sock_fprog program = {N + 3, filter};

    for (int i = 0; i < N; i++) {
        filter[i + 1] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, ALLOWED[i], N - i, 0);
    }
    filter[N + 1] = (struct sock_filter)BPF_STMT(
        BPF_RET | BPF_K, getenv("TSYNC_TRAP") ? SECCOMP_RET_TRAP : SECCOMP_RET_KILL_PROCESS);
    filter[N + 2] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    check(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    check(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program) == 0);
}

static void trapped(int signal, siginfo_t *info, void *context)
{
    char text[64];
    int n = snprintf(text, sizeof text, "system call %d\n", info->si_syscall);

    (void)context;
    n = write(2, text, n);
    (void)n;
    _exit(100 + signal);
}

static void wait_for(int index)
{
    struct pollfd entry = {fds[index], POLLIN, 0};
    struct epoll_event event;

    if (!strcmp(calls, "poll")) {
        check(poll(&entry, 1, -1) == 1);
    } else if (!strcmp(calls, "epoll")) {
        check(epoll_wait(sets[index], &event, 1, -1) == 1);
    }
}

static void *talk(void *number)
{
    int index = (int)(long)number, after = 0;
    char out[100], in[100];

    for (int round = 0; after < ROUNDS_AFTER; round++) {
        memset(out, round, sizeof out);
        check(send(fds[index], out, sizeof out, MSG_NOSIGNAL) == sizeof out);
        for (size_t at = 0; at < sizeof in;) {
            ssize_t n;

            wait_for(index);
            n = recv(fds[index], in + at, sizeof in - at, 0);
            check(n > 0);
            at += n;
        }
        check(memcmp(in, out, sizeof in) == 0);
        after += is_confined;
        rounds++;
    }
    return NULL;
}

int main(int argc, char **argv)
{
    struct sigaction action = {.sa_sigaction = trapped, .sa_flags = SA_SIGINFO};
    struct sockaddr_in address = {.sin_family = AF_INET};
    socklen_t len = sizeof address;
    int hear, status;
    pthread_t ids[THREADS_MAX];
    pid_t peer;

    if (argc < 3) {
        return 2;
    }
    calls = argv[1], threads = atoi(argv[2]);
    check(threads <= THREADS_MAX);
    alarm(LIMIT_S);
    srand(getpid());
    sigaction(SIGSYS, &action, NULL);
    hear = socket(AF_INET, SOCK_STREAM, 0);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    check(bind(hear, (struct sockaddr *)&address, len) == 0 && listen(hear, THREADS_MAX) == 0);
    check(getsockname(hear, (struct sockaddr *)&address, &len) == 0);
    peer = fork();
    check(peer >= 0);
    if (peer == 0) {
        static char room[65536];
        struct pollfd entries[THREADS_MAX];
        int open = threads;

        alarm(LIMIT_S);
        for (int i = 0; i < threads; i++) {
            entries[i] = (struct pollfd){socket(AF_INET, SOCK_STREAM, 0), POLLIN, 0};
            check(connect(entries[i].fd, (struct sockaddr *)&address, len) == 0);
        }
        while (open > 0) {
            check(poll(entries, threads, -1) > 0);
            for (int i = 0; i < threads; i++) {
                if (entries[i].revents) {
                    ssize_t n = recv(entries[i].fd, room, sizeof room, 0);

                    if (n <= 0) {
                        close(entries[i].fd);
                        entries[i].fd = -1;
                        open--;
                    } else {
                        check(send(entries[i].fd, room, n, MSG_NOSIGNAL) == n);
                    }
                }
            }
        }
        exit(0);
    }
    for (int i = 0; i < threads; i++) {
        struct epoll_event event = {.events = EPOLLIN};

        fds[i] = accept(hear, NULL, NULL);
        sets[i] = epoll_create1(0);
        check(fds[i] >= 0 && epoll_ctl(sets[i], EPOLL_CTL_ADD, fds[i], &event) == 0);
    }
    for (int i = 0; i < threads; i++) {
        check(pthread_create(&ids[i], NULL, talk, (void *)(long)i) == 0);
    }
    while (rounds < 100L * threads) {
        nap_us(1000);
    }
    nap_us(rand() % 3000);
    confine();
    is_confined = 1;
    for (int i = 0; i < threads; i++) {
        check(pthread_join(ids[i], NULL) == 0);
    }
    for (int i = 0; i < threads; i++) {
        check(shutdown(fds[i], SHUT_WR) == 0 && close(fds[i]) == 0);
    }
    check(waitpid(peer, &status, 0) == peer && status == 0);
    puts("{\"fine\": true}");
    fflush(stdout);
    _exit(0);
}
