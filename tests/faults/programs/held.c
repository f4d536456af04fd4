/* A process that is held where its `shutdown` enters the kernel, while the peer ends the connection.
 *
 *   held late HOW     the peer is told to close, with bytes unread, once the call is at the kernel's door
 *   held early HOW    the peer closes before the call
 *
 * HOW is the second argument of `shutdown`. Prints one line of JSON: what the call answered.
 */
#include "ends.h"

#include <sys/mman.h>
#include <sys/ptrace.h>

#define ROUNDS 50

/* What the processes tell each other: the port of the held end, and pipes to and from its peer. */
static atomic_int *port;
static int go[2], gone[2];

static void exactly(int fd, char *to, size_t n)
{
    while (n) {
        ssize_t more = recv(fd, to, n, 0);

        check(more > 0);
        to += more;
        n -= more;
    }
}

/* Answers ROUNDS times, then closes when told to, whatever came meanwhile. */
static void peer(struct sockaddr_in *address)
{
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    char room[100];

    alarm(LIMIT_S);
    check(connect(fd, (struct sockaddr *)address, sizeof *address) == 0);
    for (int i = 0; i < ROUNDS; i++) {
        exactly(fd, room, sizeof room);
        check(send(fd, room, sizeof room, MSG_NOSIGNAL) == sizeof room);
    }
    check(read(go[0], room, 1) == 1);
    check(close(fd) == 0);
    check(write(gone[1], room, 1) == 1);
    exit(0);
}

/* Until the peer's reset has arrived at the held end: its row is gone from the kernel's table. */
static void until_reset(void)
{
    for (;;) {
        char text[256];
        FILE *table = fopen("/proc/net/tcp", "r");
        unsigned local, remote, state;
        int is_there = 0;

        check(table);
        while (fgets(text, sizeof text, table)) {
            if (sscanf(text, " %*d: %*x:%x %*x:%x %x", &local, &remote, &state) == 3) {
                is_there |= local == (unsigned)*port && state == 1;
            }
        }
        fclose(table);
        if (!is_there) {
            return;
        }
        nap_us(1000);
    }
}

static void end_peer(void)
{
    char byte = 0;

    check(write(go[1], &byte, 1) == 1);
    check(read(gone[0], &byte, 1) == 1);
    until_reset();
}

static void held(int is_late, int how)
{
    struct sockaddr_in address = {.sin_family = AF_INET};
    socklen_t len = sizeof address;
    int hear = socket(AF_INET, SOCK_STREAM, 0), status, result;
    char room[100] = "";
    pid_t other;

    alarm(LIMIT_S);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    check(bind(hear, (struct sockaddr *)&address, len) == 0 && listen(hear, 1) == 0);
    check(getsockname(hear, (struct sockaddr *)&address, &len) == 0);
    *port = ntohs(address.sin_port);
    other = fork();
    check(other >= 0);
    if (other == 0) {
        close(hear);
        peer(&address);
    }
    sock = accept(hear, NULL, NULL);
    check(sock >= 0);
    close(hear);
    for (int i = 0; i < ROUNDS; i++) {
        check(send(sock, room, sizeof room, MSG_NOSIGNAL) == sizeof room);
        exactly(sock, room, sizeof room);
    }
    /* These the peer does not read. */
    check(send(sock, room, sizeof room, MSG_NOSIGNAL) == sizeof room);
    if (is_late) {
        check(ptrace(PTRACE_TRACEME, 0, 0, 0) == 0);
        raise(SIGSTOP);
    } else {
        end_peer();
    }
    errno = 0;
    result = shutdown(sock, how);
    printf("{\"result\": %d, \"error\": \"%s\", ", result, result ? strerrorname_np(errno) : "");
    /* And again: nothing of the first is left. */
    result = shutdown(sock, how);
    printf("\"again\": \"%s\"}\n", result ? strerrorname_np(errno) : "");
    fflush(stdout);
    check(waitpid(other, &status, 0) == other && status == 0);
    exit(0);
}

/* Lets a process run to the entry of its first `shutdown`, and on when the peer is gone. */
static void hold(pid_t pid)
{
    struct __ptrace_syscall_info info;
    int status, was_held = 0;

    check(waitpid(pid, &status, 0) == pid && WIFSTOPPED(status) && WSTOPSIG(status) == SIGSTOP);
    check(ptrace(PTRACE_SETOPTIONS, pid, 0, PTRACE_O_TRACESYSGOOD | PTRACE_O_EXITKILL) == 0);
    while (!was_held) {
        check(ptrace(PTRACE_SYSCALL, pid, 0, 0) == 0);
        check(waitpid(pid, &status, 0) == pid && WIFSTOPPED(status));
        check(WSTOPSIG(status) == (SIGTRAP | 0x80));
        check(ptrace(PTRACE_GET_SYSCALL_INFO, pid, sizeof info, &info) > 0);
        was_held = info.op == PTRACE_SYSCALL_INFO_ENTRY && info.entry.nr == SYS_shutdown;
    }
    end_peer();
    check(ptrace(PTRACE_DETACH, pid, 0, 0) == 0);
}

int main(int argc, char **argv)
{
    pid_t pid;
    int status;

    if (argc < 3) {
        return 2;
    }
    alarm(LIMIT_S);
    port = mmap(NULL, sizeof *port, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    check(port != MAP_FAILED && pipe(go) == 0 && pipe(gone) == 0);
    pid = fork();
    check(pid >= 0);
    if (pid == 0) {
        held(!strcmp(argv[1], "late"), atoi(argv[2]));
    }
    if (!strcmp(argv[1], "late")) {
        hold(pid);
    }
    check(waitpid(pid, &status, 0) == pid);
    return status != 0;
}
