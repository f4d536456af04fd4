#!/usr/bin/env python3
"""User instructions of one operation, with each of several builds of the library.

A small C program does the operation in a process that is stepped through it, instruction by instruction
(a system call counts as one, and so does each byte that `rep movsb` copies). Sends and receives are
those of a connection on its lane, twenty in a row; the middle one of the counts is printed; a foreign call
is one on a descriptor that is no socket of TCP; a fork is counted in the parent until it has the
child's number, and in the child until it ends, each in a process with a listener, and in one with a
connection on its lane. Two runs of one build can differ by what the connection happens to be at, so
the least of some runs is printed.

    benches/instructions.py [--runs N] [LIBRARY ...]
"""

import argparse
import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
CASES = {
    "send 64": "send of 64 bytes",
    "receive 64": "receive of 64 bytes",
    "send 16384": "send of 16 KiB",
    "receive 16384": "receive of 16 KiB",
    "write 1": "foreign call: write of 1 byte to /dev/null",
    "poll 0": "foreign call: poll of an empty pipe",
    "fork 0": "fork, parent, with a listener",
    "child 0": "fork, child, with a listener",
    "fork 64": "fork, parent, with a connection on its lane",
    "child 64": "fork, child, with a connection on its lane",
}

PROGRAM = r"""
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { OPERATIONS = 20, WARM = 200 };

static char bytes[1 << 16];
static pid_t own;

static void whole(int fd, int n) {
    if (recv(fd, bytes, n, MSG_WAITALL) != n) _exit(3);
}

/* The other end: as many bytes back as it is asked for, after as many as it is told. */
static void serve(int listener) {
    int fd = accept(listener, 0, 0), order[2];
    while (recv(fd, order, sizeof order, MSG_WAITALL) == sizeof order) {
        for (int left = order[0]; left > 0;) {
            ssize_t n = recv(fd, bytes, left < (int)sizeof bytes ? left : (int)sizeof bytes, 0);
            if (n <= 0) _exit(4);
            left -= n;
        }
        if (send(fd, bytes, order[1], 0) != order[1]) _exit(5);
    }
    _exit(0);
}

static void order(int fd, int takes, int gives) {
    int words[2] = {takes, gives};
    if (send(fd, words, sizeof words, 0) != sizeof words) _exit(6);
}

/* One instruction that is counted, where `raise` takes many. */
static void stop(void) {
#ifdef __x86_64__
    long result = SYS_kill, pid = own;
    __asm__ volatile("syscall" : "+a"(result) : "D"(pid), "S"(SIGSTOP) : "rcx", "r11", "memory");
#else
    raise(SIGSTOP);
#endif
}

static void measured(const char *what, int size, struct sockaddr_in *to) {
    int fd = socket(AF_INET, SOCK_STREAM, 0), null_fd = open("/dev/null", O_WRONLY), ends[2];
    if (pipe(ends) != 0) _exit(7);
    if (size && connect(fd, (void *)to, sizeof *to) != 0) _exit(8);
    struct pollfd wait = {.fd = ends[0], .events = POLLIN};
    for (int i = 0; size && i < WARM; i++) {
        order(fd, size, size);
        if (send(fd, bytes, size, 0) != size) _exit(9);
        whole(fd, size);
    }
    for (int i = 0; i < OPERATIONS; i++) {
        if (*what == 's') order(fd, size, 1);
        if (*what == 'r') {
            order(fd, 0, size);
            while (recv(fd, bytes, size, MSG_PEEK) != size) {}
        }
        stop();
        switch (*what) {
        case 's': if (send(fd, bytes, size, 0) != size) _exit(10); break;
        case 'r': if (recv(fd, bytes, size, 0) != size) _exit(11); break;
        case 'w': if (write(null_fd, bytes, 1) != 1) _exit(12); break;
        case 'p': if (poll(&wait, 1, 0) != 0) _exit(13); break;
        case 'f': case 'c': if (fork() == 0) _exit(0); break;
        }
        stop();
        if (*what == 's') whole(fd, 1);
    }
    _exit(0);
}

static int more(const void *a, const void *b) {
    return *(const long *)a < *(const long *)b ? -1 : *(const long *)a > *(const long *)b;
}

/* Steps to the next SIGSTOP, or to the end. A child of `pid` is stepped through in its turn. */
static long steps(pid_t pid, long *born) {
    int status;
    for (long n = 0;;) {
        if (ptrace(PTRACE_SINGLESTEP, pid, 0, 0) != 0) return n;
        if (waitpid(pid, &status, __WALL) != pid || !WIFSTOPPED(status)) return n;
        if (status >> 8 == (SIGTRAP | PTRACE_EVENT_FORK << 8)) {
            unsigned long child;
            ptrace(PTRACE_GETEVENTMSG, pid, 0, &child);
            waitpid(child, &status, __WALL);
            *born = steps(child, 0);
        } else if (WSTOPSIG(status) == SIGSTOP) {
            return n;
        } else {
            n++;
        }
    }
}

int main(int argc, char **argv) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof to;
    int listener = socket(AF_INET, SOCK_STREAM, 0), status;
    if (argc != 3 || bind(listener, (void *)&to, len) != 0 || listen(listener, 1) != 0) return 1;
    getsockname(listener, (void *)&to, &len);
    pid_t server = atoi(argv[2]) ? fork() : 0;
    if (server == 0 && atoi(argv[2])) serve(listener);
    pid_t child = fork();
    if (child == 0) {
        if (ptrace(PTRACE_TRACEME, 0, 0, 0) != 0) _exit(2);
        own = getpid();
        measured(argv[1], atoi(argv[2]), &to);
    }
    waitpid(child, &status, 0);
    ptrace(PTRACE_SETOPTIONS, child, 0, PTRACE_O_TRACEFORK);
    long counted[OPERATIONS];
    for (int i = 0; i < OPERATIONS; i++) {
        long born = 0, took = steps(child, &born);
        counted[i] = *argv[1] == 'c' ? born : took;
        ptrace(PTRACE_CONT, child, 0, 0);
        waitpid(child, &status, 0);
    }
    kill(child, SIGKILL);
    if (server) kill(server, SIGKILL);
    qsort(counted, OPERATIONS, sizeof *counted, more);
    printf("%ld\n", counted[OPERATIONS / 2]);
    return 0;
}
"""


def build(directory):
    """Compiles the program; its path."""
    source, program = directory / "instructions.c", directory / "instructions"
    source.write_text(PROGRAM)
    subprocess.run(["cc", "-O2", "-o", program, source], check=True)
    return program


def count(program, case, library):
    """Instructions of one operation."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("SDP_", "LD_PRELOAD"))}
    env |= {"LD_BIND_NOW": "1", "SDP_PROMOTE_CALLS": "0", "SDP_PROMOTE_BYTES": "0"}
    if library:
        env["LD_PRELOAD"] = str(library)
    run = subprocess.run([program, *case.split()], env=env, stdout=subprocess.PIPE, text=True, check=True, timeout=120)
    return int(run.stdout)


def main():
    """Counts every case and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=3)
    default = [ROOT / "target/release/libsdp.so"]
    parser.add_argument("library", nargs="*", type=pathlib.Path, default=default)
    options = parser.parse_args()
    for library in options.library:
        if not library.exists():
            sys.exit(f"{library} is missing: cargo xtask build")
    with tempfile.TemporaryDirectory() as directory:
        program = build(pathlib.Path(directory))
        print(f"{'instructions of one operation':50}{'without':>10}" + "".join(f"{f'library {i}':>12}" for i in range(1, len(options.library) + 1)))
        for case, what in CASES.items():
            least = [min(count(program, case, lib) for _ in range(options.runs)) for lib in (None, *map(pathlib.Path.resolve, options.library))]
            print(f"{what:50}{least[0]:10}" + "".join(f"{n:12}" for n in least[1:]), flush=True)


if __name__ == "__main__":
    main()
