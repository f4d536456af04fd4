/* What a fork child of a server runs of the library, step by step.
 *
 *   stepped FROM TO
 *
 * A server forks for each of a few connections; the last child, which echoes one message and ends, is stepped
 * through, instruction by instruction. FROM and TO are offsets into the library's file: where the code lies that
 * such children shall run. Prints one line of JSON: instructions of the library, those of them that lie elsewhere
 * and the first such offset, and system calls that the library made itself.
 */
#include "base.h"

#include <elf.h>
#include <sys/ptrace.h>
#include <sys/uio.h>
#include <sys/user.h>

/* Connections before: what a process does for its first ones is not asked about. */
#define BEFORE 4

static void serve(int tell)
{
    struct sockaddr_in address;
    int listener = loopback_listener(&address);

    check(write(tell, &address, sizeof address) == sizeof address);
    check(ptrace(PTRACE_TRACEME, 0, 0, 0) == 0 && raise(SIGSTOP) == 0);
    for (int i = 0; i <= BEFORE; i++) {
        int fd = accept(listener, NULL, NULL);
        pid_t child = fork();
        char byte;

        check(fd >= 0 && child >= 0);
        if (child == 0) {
            close(listener);
            while (read(fd, &byte, 1) == 1)
                check(write(fd, &byte, 1) == 1);
            close(fd);
            _exit(0);
        }
        close(fd);
        check(waitpid(child, NULL, 0) == child);
    }
    _exit(0);
}

static void ask(const struct sockaddr_in *to)
{
    for (int i = 0; i <= BEFORE; i++) {
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        char byte = 1;

        check(fd >= 0 && connect(fd, (const struct sockaddr *)to, sizeof *to) == 0);
        check(write(fd, &byte, 1) == 1 && read(fd, &byte, 1) == 1);
        check(shutdown(fd, SHUT_WR) == 0 && read(fd, &byte, 1) == 0);
        close(fd);
    }
    _exit(0);
}

/* Where the library is mapped, code and constants together. */
static void find_library(pid_t pid, unsigned long *from, unsigned long *to)
{
    char path[64], line[512];
    FILE *maps;

    snprintf(path, sizeof path, "/proc/%d/maps", pid);
    maps = fopen(path, "r");
    check(maps != NULL);
    *from = *to = 0;
    while (fgets(line, sizeof line, maps) && *to == 0)
        if (strstr(line, "libsdp.so"))
            check(sscanf(line, "%lx-%lx", from, to) == 2);
    fclose(maps);
    check(*to != 0);
}

static unsigned long at(pid_t pid)
{
    struct user_regs_struct registers;
    struct iovec where = {&registers, sizeof registers};

    check(ptrace(PTRACE_GETREGSET, pid, NT_PRSTATUS, &where) == 0);
#if defined __x86_64__
    return registers.rip;
#else
    return registers.pc;
#endif
}

static int is_system_call(pid_t pid, unsigned long address)
{
    unsigned long code = (unsigned long)ptrace(PTRACE_PEEKTEXT, pid, address, 0);

#if defined __x86_64__
    return (code & 0xffff) == 0x050f;
#else
    return (code & 0xffffffff) == 0xd4000001;
#endif
}

/* What was run of the library. */
static struct {
    long steps, elsewhere, calls;
    unsigned long first;
} seen;

/* Steps a child, which has not begun, to its end. */
static void step(pid_t child, unsigned long wanted_from, unsigned long wanted_to)
{
    unsigned long from, to;
    int status;

    find_library(child, &from, &to);
    for (;;) {
        unsigned long here;

        check(ptrace(PTRACE_SINGLESTEP, child, 0, 0) == 0);
        check(waitpid(child, &status, __WALL) == child);
        if (WIFEXITED(status)) {
            check(WEXITSTATUS(status) == 0);
            return;
        }
        check(WIFSTOPPED(status) && WSTOPSIG(status) == SIGTRAP);
        here = at(child);
        if (here < from || here >= to)
            continue;
        here -= from;
        seen.steps++;
        seen.calls += is_system_call(child, here + from);
        if ((here < wanted_from || here >= wanted_to) && seen.elsewhere++ == 0)
            seen.first = here;
    }
}

int main(int argc, char **argv)
{
    struct sockaddr_in address;
    pid_t server, client;
    int heard[2], forks = 0, status;

    check(argc == 3 && pipe(heard) == 0);
    server = fork();
    check(server >= 0);
    if (server == 0)
        serve(heard[1]);
    check(read(heard[0], &address, sizeof address) == sizeof address);
    check(waitpid(server, &status, 0) == server && WIFSTOPPED(status));
    check(ptrace(PTRACE_SETOPTIONS, server, 0, PTRACE_O_TRACEFORK | PTRACE_O_EXITKILL) == 0);
    client = fork();
    check(client >= 0);
    if (client == 0)
        ask(&address);
    for (int signal = 0;;) {
        unsigned long child;

        check(ptrace(PTRACE_CONT, server, 0, signal) == 0);
        check(waitpid(server, &status, __WALL) == server);
        if (WIFEXITED(status))
            break;
        check(WIFSTOPPED(status));
        signal = WSTOPSIG(status);
        if (status >> 8 != (SIGTRAP | PTRACE_EVENT_FORK << 8))
            continue;
        signal = 0;
        check(ptrace(PTRACE_GETEVENTMSG, server, 0, &child) == 0);
        check(waitpid((pid_t)child, &status, __WALL) == (pid_t)child && WIFSTOPPED(status));
        if (forks++ < BEFORE) {
            check(ptrace(PTRACE_DETACH, (pid_t)child, 0, 0) == 0);
            continue;
        }
        /* What the library does in the parent after a fork the child may wait for. */
        check(ptrace(PTRACE_CONT, server, 0, 0) == 0);
        step((pid_t)child, strtoul(argv[1], NULL, 10), strtoul(argv[2], NULL, 10));
        check(waitpid(server, &status, __WALL) == server);
        if (WIFEXITED(status))
            break;
        signal = WSTOPSIG(status);
    }
    check(WEXITSTATUS(status) == 0);
    check(waitpid(client, &status, 0) == client && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    printf("{\"steps\": %ld, \"elsewhere\": %ld, \"first\": %lu, \"calls\": %ld}\n", seen.steps, seen.elsewhere,
           seen.first, seen.calls);
    return 0;
}
