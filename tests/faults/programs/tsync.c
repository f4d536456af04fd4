/* A seccomp filter, which allows just what the program itself does, while other threads are in calls.
 *
 *   tsync CALLS THREADS [WHOSE]
 *
 * Each thread has a connection to an echoing child, and uses it with blocking calls, behind poll or behind
 * epoll (CALLS: block, poll, epoll). Then a filter that kills for any other system call is installed (WHOSE: all, by
 * one more thread for all threads, at a random moment; one, by one of them for itself alone, when all have come far;
 * first, the same before its own connection has earned anything); the rest goes on for a while. A thread without a
 * filter makes one more connection in the end, if there is such a thread. Prints one line of JSON.
 */
#include "ends.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/epoll.h>
#include <sys/prctl.h>

#define THREADS_MAX 16
#define ROUNDS_AFTER 200
/* Rounds before a thread confines itself: too few for a lane of its own, and enough for everybody's. */
#define FEW 3
#define MANY 100

static const char *calls, *whose = "all";
static int threads, fds[THREADS_MAX], sets[THREADS_MAX];
static atomic_int is_confined;
static atomic_long rounds, rounds_of[THREADS_MAX];
static atomic_int tids[THREADS_MAX], done, may_end;

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
    if (strcmp(whose, "all") == 0) {
        check(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program) == 0);
    } else {
        check(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
    }
}

/* What the kernel says of a thread's confinement. Asked by who is not confined. */
static int filter_of(int thread)
{
    char path[64], text[4096], *at;
    FILE *file;
    size_t n;

    snprintf(path, sizeof path, "/proc/self/task/%d/status", thread);
    file = fopen(path, "r");
    check(file);
    n = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[n] = 0;
    at = strstr(text, "\nSeccomp:\t");
    check(at);
    return atoi(at + 10);
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

/* Whether the first thread is to confine itself now. */
static int is_time(int round)
{
    if (strcmp(whose, "first") == 0) {
        return round == FEW;
    }
    for (int i = 0; i < threads; i++) {
        if (rounds_of[i] < MANY) {
            return 0;
        }
    }
    return strcmp(whose, "one") == 0;
}

static void *talk(void *number)
{
    int index = (int)(long)number, after = 0;
    char out[100], in[100];

    tids[index] = thread_id();
    for (int round = 0; after < ROUNDS_AFTER; round++) {
        if (index == 0 && !is_confined && is_time(round)) {
            confine();
            is_confined = 1;
        }
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
        rounds_of[index]++;
    }
    done++;
    while (!may_end) {
        nap_us(1000);
    }
    return NULL;
}

/* A connection of a thread without a filter, in a process that has one with it: to itself. */
static void one_more(int hear, const struct sockaddr_in *address)
{
    char out[100], in[100];
    int ends[2] = {socket(AF_INET, SOCK_STREAM, 0), -1};

    check(connect(ends[0], (struct sockaddr *)address, sizeof *address) == 0);
    ends[1] = accept(hear, NULL, NULL);
    for (int round = 0; round < ROUNDS_AFTER; round++) {
        memset(out, round, sizeof out);
        check(send(ends[round % 2], out, sizeof out, MSG_NOSIGNAL) == sizeof out);
        check(recv(ends[1 - round % 2], in, sizeof in, MSG_WAITALL) == sizeof in);
        check(memcmp(in, out, sizeof in) == 0);
    }
    check(close(ends[0]) == 0 && recv(ends[1], in, 1, 0) == 0 && close(ends[1]) == 0);
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
    whose = argc > 3 ? argv[3] : whose;
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
    if (strcmp(whose, "all") == 0) {
        while (rounds < 100L * threads) {
            nap_us(1000);
        }
        nap_us(rand() % 3000);
        confine();
        is_confined = 1;
    } else {
        while (done < threads) {
            nap_us(1000);
        }
        for (int i = 0; i < threads; i++) {
            check(filter_of(tids[i]) == (i == 0 ? SECCOMP_MODE_FILTER : 0));
        }
        one_more(hear, &address);
    }
    may_end = 1;
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
