/* How many bells a process makes whose threads come to their first meetings together.
 *
 *   bells THREADS FREE HELD
 *
 * Fresh processes, one after the other, with a connection to a child that echoes for each thread. In FREE of them all
 * threads begin at once. In HELD more the first thread begins alone and is stopped as it enters a system call, one
 * call later in each process; meanwhile the others begin, and it goes on once they are through, or have waited for
 * it for a while. Prints one line of JSON: round trips, and in how many processes there was what in the end: eventfds,
 * mapped bell pages and descriptors of bell pages, the same of the child, and whether threads slept on. These are the
 * last ones.
 */
#include "base.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/ptrace.h>

#define LIMIT_S 30
#define THREADS_MAX 16
#define ROUNDS 20
/* Longest wait for threads that may be waiting for the one that is held. */
#define HELD_MS 100
/* After that a thread that is not done sleeps for ever. */
#define PATIENCE_MS 10000
/* The way to whoever executed this, in a process that does it. */
#define LINE 3

/* ---- bells ---- */

/* Each bell that a process has in any way, once. */
struct bells {
    int events, pages, files;
};

static struct bells has;

/* Whether a number is new in a list. */
static int is_new(long *list, int *used, long number)
{
    for (int i = 0; i < *used; i++) {
        if (list[i] == number) {
            return 0;
        }
    }
    check(*used < 64);
    list[(*used)++] = number;
    return 1;
}

/* The kernel's number of an eventfd: several descriptors may be for one. */
static long number_of_event(const char *descriptor)
{
    char path[300], line[128];
    long number = -1;
    FILE *info;

    snprintf(path, sizeof path, "/proc/self/fdinfo/%s", descriptor);
    info = fopen(path, "r");
    check(info != NULL);
    while (fgets(line, sizeof line, info)) {
        sscanf(line, "eventfd-id: %ld", &number);
    }
    fclose(info);
    check(number >= 0);
    return number;
}

static void look_for_bells(void)
{
    long events[64], pages[64], inode;
    int events_used = 0, pages_used = 0;
    DIR *all = opendir("/proc/self/fd");
    FILE *maps = fopen("/proc/self/maps", "r");
    struct dirent *one;
    char line[512];

    check(all != NULL && maps != NULL);
    while ((one = readdir(all)) != NULL) {
        char path[300], target[128];
        ssize_t n;

        snprintf(path, sizeof path, "/proc/self/fd/%s", one->d_name);
        n = readlink(path, target, sizeof target - 1);
        target[n < 0 ? 0 : n] = 0;
        if (strcmp(target, "anon_inode:[eventfd]") == 0) {
            has.events += is_new(events, &events_used, number_of_event(one->d_name));
        }
        has.files += strstr(target, "memfd:sdp-bell") != NULL;
    }
    while (fgets(line, sizeof line, maps)) {
        if (strstr(line, "memfd:sdp-bell")) {
            check(sscanf(line, "%*s %*s %*s %*s %ld", &inode) == 1);
            has.pages += is_new(pages, &pages_used, inode);
        }
    }
    closedir(all);
    fclose(maps);
}

/* ---- one process ---- */

/* What a process and its child have in the end. */
struct found {
    struct bells here, there;
    int is_asleep;
};

static int threads, fds[THREADS_MAX];
static pthread_barrier_t start;
static atomic_int done;

/* The child: echoes; says what it has when it is asked, and ends then. */
static void echo(const struct sockaddr_in *to, int asked)
{
    struct pollfd entries[THREADS_MAX + 1];
    char room[100];

    alarm(LIMIT_S);
    for (int i = 0; i < threads; i++) {
        entries[i] = (struct pollfd){socket(AF_INET, SOCK_STREAM, 0), POLLIN, 0};
        check(connect(entries[i].fd, (const struct sockaddr *)to, sizeof *to) == 0);
    }
    entries[threads] = (struct pollfd){asked, POLLIN, 0};
    for (;;) {
        check(poll(entries, threads + 1, -1) > 0);
        if (entries[threads].revents) {
            break;
        }
        for (int i = 0; i < threads; i++) {
            if (entries[i].revents) {
                ssize_t n = recv(entries[i].fd, room, sizeof room, 0);

                check(n > 0 && send(entries[i].fd, room, n, MSG_NOSIGNAL) == n);
            }
        }
    }
    check(read(asked, room, 1) == 1);
    look_for_bells();
    check(write(asked, &has, sizeof has) == sizeof has && read(asked, room, 1) == 0);
    exit(0);
}

static void talk(int fd)
{
    char out[100], in[100];

    for (int round = 0; round < ROUNDS; round++) {
        memset(out, round, sizeof out);
        check(send(fd, out, sizeof out, MSG_NOSIGNAL) == sizeof out);
        check(recv(fd, in, sizeof in, MSG_WAITALL) == sizeof in);
        check(memcmp(in, out, sizeof in) == 0);
    }
    done++;
}

static void *talk_at_once(void *fd)
{
    pthread_barrier_wait(&start);
    talk(*(int *)fd);
    return NULL;
}

/* Begins when whoever holds it lets it, and is held. */
static void *talk_held(void *fd)
{
    int tid = thread_id();

    check(ptrace(PTRACE_TRACEME, 0, 0, 0) == 0);
    check(write(LINE, &tid, sizeof tid) == sizeof tid);
    check(syscall(SYS_tgkill, getpid(), tid, SIGSTOP) == 0);
    talk(*(int *)fd);
    return NULL;
}

/* Whether so many threads are done, in time: for one patience in all. */
static int until_done(int count)
{
    static int naps;

    while (done < count && naps < PATIENCE_MS) {
        nap_us(1000);
        naps++;
    }
    return done >= count;
}

static int one(int is_held)
{
    struct sockaddr_in address;
    int hear, status, asked[2], first = is_held ? 1 : 0;
    pthread_t ids[THREADS_MAX];
    struct found found = {0};
    pid_t peer;
    char byte;

    alarm(LIMIT_S);
    hear = loopback_listener(&address);
    check(listen(hear, THREADS_MAX) == 0 && socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, asked) == 0);
    peer = fork();
    check(peer >= 0);
    if (peer == 0) {
        close(LINE);
        close(asked[0]);
        echo(&address, asked[1]);
    }
    close(asked[1]);
    check(pthread_barrier_init(&start, NULL, threads - first + 1) == 0);
    for (int i = 0; i < threads; i++) {
        fds[i] = accept(hear, NULL, NULL);
        check(fds[i] >= 0);
    }
    for (int i = threads; i-- > 0;) {
        check(pthread_create(&ids[i], NULL, i < first ? talk_held : talk_at_once, &fds[i]) == 0);
    }
    if (is_held) {
        check(read(LINE, &byte, 1) == 1);
    }
    pthread_barrier_wait(&start);
    until_done(threads - first);
    check(write(LINE, "o", 1) == 1);
    found.is_asleep = !until_done(threads);
    look_for_bells();
    found.here = has;
    check(write(asked[0], "?", 1) == 1 && read(asked[0], &found.there, sizeof has) == sizeof has);
    if (found.is_asleep) {
        kill(peer, SIGKILL);
        check(write(LINE, &found, sizeof found) == sizeof found);
        _exit(0);
    }
    for (int i = 0; i < threads; i++) {
        check(pthread_join(ids[i], NULL) == 0);
    }
    for (int i = 0; i < threads; i++) {
        check(shutdown(fds[i], SHUT_WR) == 0 && close(fds[i]) == 0);
    }
    close(asked[0]);
    check(waitpid(peer, &status, 0) == peer && status == 0);
    check(write(LINE, &found, sizeof found) == sizeof found);
    return 0;
}

/* ---- whoever starts and holds them ---- */

/* Lets a thread go on until it enters its system call `number`. False: it ended before. */
static int run_until_call(pid_t tid, int number)
{
    struct __ptrace_syscall_info info;
    int status;

    check(waitpid(tid, &status, __WALL) == tid && WIFSTOPPED(status) && WSTOPSIG(status) == SIGSTOP);
    check(ptrace(PTRACE_SETOPTIONS, tid, 0, PTRACE_O_TRACESYSGOOD) == 0);
    for (int calls = 0; calls < number;) {
        check(ptrace(PTRACE_SYSCALL, tid, 0, 0) == 0);
        check(waitpid(tid, &status, __WALL) == tid);
        if (!WIFSTOPPED(status)) {
            return 0;
        }
        check(WSTOPSIG(status) == (SIGTRAP | 0x80));
        check(ptrace(PTRACE_GET_SYSCALL_INFO, tid, sizeof info, &info) > 0);
        calls += info.op == PTRACE_SYSCALL_INFO_ENTRY;
    }
    if (getenv("BELLS_SHOW")) {
        fprintf(stderr, "%d: call %d\n", number, (int)info.entry.nr);
    }
    return 1;
}

/* Starts a process; its first thread is held at that call of its own, if any. What was found in the end. */
static struct found start_one(const char *count, int held_at)
{
    int ends[2], status, tid, is_held = 0;
    struct found found;
    char byte;
    pid_t pid;

    check(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0);
    pid = fork();
    check(pid >= 0);
    if (pid == 0) {
        check(dup2(ends[1], LINE) == LINE && fcntl(LINE, F_SETFD, 0) == 0);
        execl("/proc/self/exe", "bells", "one", count, held_at ? "held" : "free", NULL);
        _exit(1);
    }
    close(ends[1]);
    if (held_at) {
        struct pollfd entry = {ends[0], POLLIN, 0};

        check(read(ends[0], &tid, sizeof tid) == sizeof tid);
        is_held = run_until_call(tid, held_at);
        check(write(ends[0], "g", 1) == 1);
        check(poll(&entry, 1, HELD_MS) >= 0);
        if (is_held) {
            check(ptrace(PTRACE_DETACH, tid, 0, 0) == 0);
        }
    }
    check(read(ends[0], &byte, 1) == 1);
    check(read(ends[0], &found, sizeof found) == sizeof found);
    check(waitpid(pid, &status, 0) == pid && status == 0);
    close(ends[0]);
    return found;
}

int main(int argc, char **argv)
{
    static struct {
        struct found found;
        int times;
    } kinds[64];
    int used = 0, trips = 0, is_over = 0, total, free;

    if (argc == 4 && strcmp(argv[1], "one") == 0) {
        threads = atoi(argv[2]);
        return one(strcmp(argv[3], "held") == 0);
    }
    check(argc == 4);
    threads = atoi(argv[1]), free = atoi(argv[2]), total = free + atoi(argv[3]);
    check(threads > 1 && threads <= THREADS_MAX);
    for (int i = 0; i < total && !is_over; i++) {
        int held_at = i < free ? 0 : i - free + 1, kind = 0;
        struct found found = start_one(argv[1], held_at);

        while (kind < used && memcmp(&kinds[kind].found, &found, sizeof found) != 0) {
            kind++;
        }
        check(kind < 64);
        if (kind == used) {
            kinds[used++].found = found;
            fprintf(stderr, "held at call %d: first of its kind\n", held_at);
        }
        kinds[kind].times++;
        is_over = found.is_asleep;
        trips += is_over ? 0 : threads * ROUNDS;
    }
    printf("{\"trips\": %d, \"bells\": {", trips);
    for (int i = 0; i < used; i++) {
        const struct found *f = &kinds[i].found;

        printf("%s\"%d %d %d, %d %d %d%s\": %d", i ? ", " : "", f->here.events, f->here.pages, f->here.files,
               f->there.events, f->there.pages, f->there.files, f->is_asleep ? ", asleep" : "", kinds[i].times);
    }
    puts("}}");
    return 0;
}
