/* What makes a connection leave its lane, each with bytes unread in the rings of both directions.
 *
 *   reasons THING        (the names are in the table below)
 *
 * The connection is on its lane and UNREAD bytes lie unread each way when the thing is done. Some things read
 * or write in a way of their own; what is left is received by both ends, and then both send more.
 *
 * Prints one line of JSON: what the thing's calls gave.
 */
#include "ends.h"

#include <aio.h>
#include <dlfcn.h>
#include <linux/errqueue.h>
#include <linux/filter.h>
#include <linux/net_tstamp.h>
#include <spawn.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/select.h>

#define UNREAD 50000
#define MORE 300000
/* What a thing of its own way moves behind that, less than a pipe takes. */
#define OWN 5000
/* More than `select` is looked at with. */
#define MANY 1100

extern char **environ;

static char room[UNREAD + OWN];
/* How many bytes the child was told to send, and to receive. */
static long come = UNREAD, gone;

/* A call's answer, for the comparison. */
static void told(const char *what, long result)
{
    printf("\"%s\": \"%s\", ", what, result < 0 ? strerrorname_np(errno) : "fine");
}

/* What was read by other means than `recv`: the next bytes of the stream. */
static void got(const char *from, size_t n)
{
    check(is_pattern(from, theirs, n));
    theirs += n;
}

/* ---- splice ---- */

static void splice_from(void)
{
    int ends[2];

    check(pipe(ends) == 0);
    for (size_t n = 0; n < UNREAD;) {
        ssize_t some = splice(sock, NULL, ends[1], NULL, UNREAD - n, 0);

        check(some > 0);
        check(read(ends[0], room, some) == some);
        got(room, some);
        n += some;
    }
}

static void splice_to(void)
{
    int ends[2];

    check(pipe(ends) == 0);
    fill(room, ours, OWN);
    check(write(ends[1], room, OWN) == OWN);
    for (size_t left = OWN; left;) {
        ssize_t some = splice(ends[0], NULL, sock, NULL, left, 0);

        check(some > 0);
        ours += some;
        left -= some;
    }
}

/* ---- stdio ---- */

static void stream_in(void)
{
    FILE *in = fdopen(sock, "r");

    check(in && setvbuf(in, NULL, _IONBF, 0) == 0);
    check(fread(room, 1, UNREAD, in) == UNREAD);
    got(room, UNREAD);
    tell('s', OWN);
    come += OWN;
    check(fread(room, 1, OWN, in) == OWN);
    got(room, OWN);
    answered();
}

static void stream_out(void)
{
    FILE *out = fdopen(sock, "w");

    check(out);
    fill(room, ours, OWN);
    check(fwrite(room, 1, OWN, out) == OWN && fflush(out) == 0);
    ours += OWN;
}

static void print(void)
{
    for (int i = 0; i < 100; i++) {
        check(dprintf(sock, "%c%c", pattern(ours), pattern(ours + 1)) == 2);
        ours += 2;
    }
}

/* ---- POSIX asynchronous I/O ---- */

static void until_done(struct aiocb *job, ssize_t n)
{
    const struct aiocb *jobs[] = {job};
    int error;

    while ((error = aio_error(job)) == EINPROGRESS) {
        check(aio_suspend(jobs, 1, NULL) == 0 || errno == EINTR);
    }
    check(error == 0 && aio_return(job) == n);
}

/* With all bytes there, a read gets as many as it wants: they are in one queue of the kernel's by then. */
static void aio_in(void)
{
    for (size_t n = 0; n < UNREAD;) {
        struct aiocb job = {.aio_fildes = sock, .aio_buf = room, .aio_nbytes = 1000};

        check(aio_read(&job) == 0);
        until_done(&job, 1000);
        got(room, 1000);
        n += 1000;
    }
}

static void aio_out(void)
{
    struct aiocb job = {.aio_fildes = sock, .aio_buf = room, .aio_nbytes = OWN};

    fill(room, ours, OWN);
    check(aio_write(&job) == 0);
    until_done(&job, OWN);
    ours += OWN;
}

static void aio_list(void)
{
    struct aiocb in = {.aio_fildes = sock, .aio_buf = room, .aio_nbytes = 1000, .aio_lio_opcode = LIO_READ};
    struct aiocb out = {.aio_fildes = sock, .aio_buf = room + 1000, .aio_nbytes = OWN, .aio_lio_opcode = LIO_WRITE};
    struct aiocb *jobs[] = {&in, &out};

    fill(room + 1000, ours, OWN);
    check(lio_listio(LIO_WAIT, jobs, 2, NULL) == 0);
    check(aio_return(&in) == 1000 && aio_return(&out) == OWN);
    got(room, 1000);
    ours += OWN;
}

/* ---- signals ---- */

static volatile sig_atomic_t came;

static void comes(int signum)
{
    came = signum;
}

/* The signal that bytes bring does come. */
static void until_it_comes(void)
{
    tell('s', 100);
    come += 100;
    for (int i = 0; !came && i < 3000; i++) {
        nap_us(10000);
    }
    answered();
    told("signal", came ? 0 : -1);
}

static void asynchronous(void)
{
    check(signal(SIGIO, comes) != SIG_ERR);
    told("owner", fcntl(sock, F_SETOWN, getpid()));
    told("flag", fcntl(sock, F_SETFL, O_ASYNC));
    until_it_comes();
}

static void only_flag(void) { told("flag", fcntl(sock, F_SETFL, O_ASYNC)); }
static void only_owner(void) { told("owner", fcntl(sock, F_SETOWN, getpid())); }
static void only_signal(void) { told("signal", fcntl(sock, F_SETSIG, SIGUSR1)); }

static void wider_owner(void)
{
    struct f_owner_ex owner = {F_OWNER_PID, getpid()};

    told("owner", fcntl(sock, F_SETOWN_EX, &owner));
}

static void by_ioctl(void)
{
    int one = 1, self = getpid();

    check(signal(SIGIO, comes) != SIG_ERR);
    told("owner", ioctl(sock, FIOSETOWN, &self));
    told("flag", ioctl(sock, FIOASYNC, &one));
    until_it_comes();
}

static void only_ioctl(void)
{
    int one = 1;

    told("flag", ioctl(sock, FIOASYNC, &one));
}

static void group_by_ioctl(void)
{
    int self = getpid();

    told("owner", ioctl(sock, SIOCSPGRP, &self));
}

/* ---- socket options and flags ---- */

static void set(int level, int option, const void *value, socklen_t len)
{
    told("option", setsockopt(sock, level, option, value, len));
}

static void set_number(int level, int option, int value)
{
    set(level, option, &value, sizeof value);
}

/* What the next OWN bytes are sent with. */
static void send_own(int flags)
{
    fill(room, ours, OWN);
    check(send(sock, room, OWN, flags | MSG_NOSIGNAL) == OWN);
    ours += OWN;
}

static void zerocopy(void)
{
    char control[256];
    struct msghdr message = {.msg_control = control, .msg_controllen = sizeof control};
    struct pollfd entry = {sock, 0, 0};
    int error = -1;

    set_number(SOL_SOCKET, SO_ZEROCOPY, 1);
    send_own(MSG_ZEROCOPY);
    gone = ours;
    check(ask('r', gone).n == gone);
    check(poll(&entry, 1, 30000) == 1 && entry.revents & POLLERR);
    check(recvmsg(sock, &message, MSG_ERRQUEUE) == 0);
    for (struct cmsghdr *each = CMSG_FIRSTHDR(&message); each; each = CMSG_NXTHDR(&message, each)) {
        if (each->cmsg_level == SOL_IP && each->cmsg_type == IP_RECVERR) {
            error = ((struct sock_extended_err *)(void *)CMSG_DATA(each))->ee_origin;
        }
    }
    printf("\"origin\": %d, ", error);
}

static void zerocopy_flag(void) { send_own(MSG_ZEROCOPY); }

static void urgent_flag(void)
{
    check(send(sock, "!", 1, MSG_OOB | MSG_NOSIGNAL) == 1);
    send_own(0);
}

static void urgent_option(void) { set_number(SOL_SOCKET, SO_OOBINLINE, 1); }
static void watermark(void) { set_number(SOL_SOCKET, SO_RCVLOWAT, 2); }
static void timestamps(void) { set_number(SOL_SOCKET, SO_TIMESTAMPING, SOF_TIMESTAMPING_RX_SOFTWARE); }
static void upper_protocol(void) { set(IPPROTO_TCP, TCP_ULP, "tls", 4); }

static void filter(void)
{
    struct sock_filter all[] = {BPF_STMT(BPF_RET | BPF_K, 0xffffffff)};
    struct sock_fprog program = {1, all};

    set(SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program);
}

static void filter_of_none(void) { set_number(SOL_SOCKET, SO_ATTACH_BPF, -1); }

static void repair(void)
{
    int on = 1, off = 0;

    told("on", setsockopt(sock, IPPROTO_TCP, TCP_REPAIR, &on, sizeof on));
    told("off", setsockopt(sock, IPPROTO_TCP, TCP_REPAIR, &off, sizeof off));
}

/* ---- numbers ---- */

/* A read by libc's own name, which is not the library's. */
static void read_past(int fd, size_t n)
{
    void *libc = dlopen("libc.so.6", RTLD_LAZY | RTLD_NOLOAD);
    ssize_t (*past)(int, void *, size_t) = (ssize_t (*)(int, void *, size_t))dlsym(libc, "read");

    check(past);
    while (n) {
        ssize_t some = past(fd, room, n);

        check(some > 0);
        got(room, some);
        n -= some;
    }
}

static void onto_input(void)
{
    check(dup2(sock, 0) == 0);
    read_past(0, UNREAD);
}

static void third_onto_output(void)
{
    int kept = dup(1);

    fflush(stdout);
    check(dup3(sock, 1, 0) == 1);
    read_past(sock, UNREAD);
    check(dup2(kept, 1) == 1);
}

/* Reads what another program made of the connection on its descriptor 0. */
static void from_helper(int from, pid_t helper)
{
    int status;

    for (size_t n = 0; n < UNREAD;) {
        ssize_t some = read(from, room, UNREAD - n);

        check(some > 0);
        got(room, some);
        n += some;
    }
    close(from);
    check(waitpid(helper, &status, 0) == helper && status == 0);
}

static char *const helper_words[] = {"head", "-c", "50000", NULL};

static void spawned(void)
{
    posix_spawn_file_actions_t actions;
    int ends[2];
    pid_t helper;

    check(pipe2(ends, O_CLOEXEC) == 0);
    check(posix_spawn_file_actions_init(&actions) == 0);
    check(posix_spawn_file_actions_adddup2(&actions, sock, 0) == 0);
    check(posix_spawn_file_actions_adddup2(&actions, ends[1], 1) == 0);
    check(posix_spawnp(&helper, "head", &actions, NULL, helper_words, environ) == 0);
    close(ends[1]);
    from_helper(ends[0], helper);
}

static void vforked(void)
{
    int ends[2];
    pid_t helper;

    check(pipe2(ends, O_CLOEXEC) == 0);
    helper = vfork();
    check(helper >= 0);
    if (helper == 0) {
        dup2(sock, 0);
        dup2(ends[1], 1);
        execvp("head", helper_words);
        _exit(1);
    }
    close(ends[1]);
    from_helper(ends[0], helper);
}

static void wide_select(void)
{
    enum { WORD = 8 * sizeof(unsigned long) };
    static unsigned long bits[4096 / WORD];
    struct rlimit limit;
    struct timeval never = {0, 0};
    int ends[2], fds[MANY + 1], highest = 0;

    check(getrlimit(RLIMIT_NOFILE, &limit) == 0);
    limit.rlim_cur = limit.rlim_max < 4096 ? limit.rlim_max : 4096;
    check(setrlimit(RLIMIT_NOFILE, &limit) == 0);
    check(pipe(ends) == 0);
    for (int i = 0; i <= MANY; i++) {
        int fd = fds[i] = i < MANY ? dup(ends[0]) : sock;

        check(fd >= 0 && fd < 4096);
        bits[fd / WORD] |= 1ul << fd % WORD;
        highest = fd > highest ? fd : highest;
    }
    check(select(highest + 1, (fd_set *)(void *)bits, NULL, NULL, &never) == 1);
    check(bits[sock / WORD] >> sock % WORD & 1);
    for (int i = 0; i < MANY; i++) {
        check(close(fds[i]) == 0);
    }
}

/* ---- a full ring ---- */

/* Nobody has seen this end wait, so that it is not told to wait for room in the ring. */
static void until_full(void)
{
    static char much[65536];

    for (;;) {
        ssize_t n;

        fill(much, ours, sizeof much);
        n = send(sock, much, sizeof much, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n < 0) {
            check(errno == EAGAIN);
            break;
        }
        ours += n;
    }
}

static const struct {
    const char *name;
    void (*act)(void);
} things[] = {
    {"splice-from", splice_from},
    {"splice-to", splice_to},
    {"fdopen-in", stream_in},
    {"fdopen-out", stream_out},
    {"dprintf", print},
    {"aio_read", aio_in},
    {"aio_write", aio_out},
    {"lio_listio", aio_list},
    {"asynchronous", asynchronous},
    {"O_ASYNC", only_flag},
    {"F_SETOWN", only_owner},
    {"F_SETOWN_EX", wider_owner},
    {"F_SETSIG", only_signal},
    {"asynchronous-ioctl", by_ioctl},
    {"FIOASYNC", only_ioctl},
    {"SIOCSPGRP", group_by_ioctl},
    {"SO_ZEROCOPY", zerocopy},
    {"MSG_ZEROCOPY", zerocopy_flag},
    {"MSG_OOB", urgent_flag},
    {"SO_OOBINLINE", urgent_option},
    {"SO_RCVLOWAT", watermark},
    {"SO_TIMESTAMPING", timestamps},
    {"SO_ATTACH_FILTER", filter},
    {"SO_ATTACH_BPF", filter_of_none},
    {"TCP_ULP", upper_protocol},
    {"TCP_REPAIR", repair},
    {"dup2", onto_input},
    {"dup3", third_onto_output},
    {"adddup2", spawned},
    {"vfork-dup2", vforked},
    {"select", wide_select},
    {"ring-full", until_full},
};

/* What the thing has left unread. */
static void settle(void)
{
    check(receive_pattern(sock, &theirs, come - theirs) >= 0 && theirs == come);
    check(ask('r', ours - gone).n == ours - gone);
}

int main(int argc, char **argv)
{
    void (*act)(void) = NULL;

    for (size_t i = 0; i < sizeof things / sizeof *things; i++) {
        if (argc > 1 && !strcmp(argv[1], things[i].name)) {
            act = things[i].act;
        }
    }
    if (!act) {
        return 2;
    }
    alarm(LIMIT_S);
    connect_to_child();
    ping(100);
    ask('s', UNREAD);
    send_pattern(sock, &ours, UNREAD);
    printf("{");
    act();
    settle();
    tell('b', MORE);
    send_pattern(sock, &ours, MORE);
    check(receive_pattern(sock, &theirs, MORE) == MORE);
    answered();
    finish();
    printf("\"fine\": true}\n");
    return 0;
}
