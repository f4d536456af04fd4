#!/usr/bin/env python3
"""What the library adds to a call on a descriptor that is not a TCP socket.

Builds a small C program that loops over one call and runs it with and without the library in turn, on
one CPU. Printed are the nanoseconds per call of the best round without the library, what the best
round with it took longer, and the median of the pairs' differences. On a machine that does other things
too their noise is larger than what is measured, so the program is also stepped through one call,
instruction by instruction: how many more user instructions the call takes with the library is exact
(a system call counts as one).

The process has a listening TCP socket throughout, so that the library has something to look after;
the descriptors that are measured are a device and a pipe.

    benches/foreign.py [--rounds N] [--calls N] [--library PATH]
"""

import argparse
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
CASES = ["write", "read", "dup-close", "poll"]
WHAT = {
    "write": "write of 1 byte to /dev/null",
    "read": "read of 1 byte from /dev/zero",
    "dup-close": "dup and close of /dev/null (two calls)",
    "poll": "poll of an empty pipe, no wait",
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
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static int null_fd, zero_fd, pipe_fds[2];

static void one(char what) {
    char byte = 0;
    struct pollfd wait = {.fd = pipe_fds[0], .events = POLLIN};
    switch (what) {
    case 'w': if (write(null_fd, &byte, 1) != 1) abort(); break;
    case 'r': if (read(zero_fd, &byte, 1) != 1) abort(); break;
    case 'd': if (close(dup(null_fd)) != 0) abort(); break;
    case 'p': if (poll(&wait, 1, 0) != 0) abort(); break;
    }
}

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec + now.tv_nsec / 1e9;
}

static int listen_somewhere(void) {
    struct sockaddr_in any = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    return bind(fd, (void *)&any, sizeof any) == 0 && listen(fd, 1) == 0;
}

/* Steps through the child between its first two stops. */
static long steps(pid_t child) {
    int status, inside = 0;
    long n = 0;
    while (waitpid(child, &status, 0) == child && WIFSTOPPED(status)) {
        if (WSTOPSIG(status) == SIGSTOP && inside++) break;
        n += WSTOPSIG(status) == SIGTRAP;
        if (ptrace(PTRACE_SINGLESTEP, child, 0, 0) != 0) break;
    }
    kill(child, SIGKILL);
    waitpid(child, &status, 0);
    return n;
}

static long count(char what) {
    pid_t child = fork();
    if (child == 0) {
        if (ptrace(PTRACE_TRACEME, 0, 0, 0) != 0 || !listen_somewhere()) _exit(1);
        for (int i = 0; i < 3; i++) one(what);
        raise(SIGSTOP);
        one(what);
        raise(SIGSTOP);
        _exit(0);
    }
    return steps(child);
}

int main(int argc, char **argv) {
    if (argc != 4) return 2;
    null_fd = open("/dev/null", O_WRONLY);
    zero_fd = open("/dev/zero", O_RDONLY);
    if (null_fd < 0 || zero_fd < 0 || pipe(pipe_fds) != 0) return 1;
    if (strcmp(argv[1], "count") == 0) {
        printf("%ld\n", count(argv[2][0]));
        return 0;
    }
    if (!listen_somewhere()) return 1;
    long calls = atol(argv[3]);
    for (long i = 0; i < calls / 10; i++) one(argv[2][0]);
    /* The best of ten parts: what else ran on this CPU meanwhile is not the call's. */
    double best = 1e9;
    for (int part = 0; part < 10; part++) {
        double start = seconds();
        for (long i = 0; i < calls / 10; i++) one(argv[2][0]);
        double took = (seconds() - start) / (calls / 10);
        if (took < best) best = took;
    }
    printf("%.3f\n", best * 1e9);
    return 0;
}
"""


def build(directory):
    """Compiles the program; its path."""
    source, program = directory / "foreign.c", directory / "foreign"
    source.write_text(PROGRAM)
    subprocess.run(["cc", "-O2", "-o", program, source], check=True)
    return program


def run(program, mode, case, calls, library):
    """One run, on one CPU; the number that it prints."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("SDP_", "LD_PRELOAD"))}
    if library:
        env["LD_PRELOAD"] = str(library)
    cpu = min(os.sched_getaffinity(0))
    result = subprocess.run(
        [program, mode, case, str(calls)],
        env=env,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        preexec_fn=lambda: os.sched_setaffinity(0, {cpu}),
    )
    return float(result.stdout)


def main():
    """Measures every case and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--calls", type=int, default=200_000, help="calls per round")
    parser.add_argument("--library", type=pathlib.Path, default=ROOT / "target/release/libsdp.so")
    options = parser.parse_args()
    if not options.library.exists():
        sys.exit(f"{options.library} is missing: cargo xtask build")
    with tempfile.TemporaryDirectory() as directory:
        program = build(pathlib.Path(directory))
        print(f"{'call':40}{'ns':>8}{'added':>8}{'median added':>16}{'instructions added':>22}")
        for case in CASES:
            plain, with_it = [], []
            for number in range(options.rounds):
                order = [None, options.library]
                if number % 2:
                    order.reverse()
                took = {lib: run(program, "time", case, options.calls, lib) for lib in order}
                plain.append(took[None])
                with_it.append(took[options.library])
            steps = [run(program, "count", case, 0, lib) for lib in (None, options.library)]
            best = min(with_it) - min(plain)
            middle = statistics.median(b - a for a, b in zip(plain, with_it))
            print(
                f"{WHAT[case]:40}{min(plain):8.1f}{best:+8.1f}{middle:+16.1f}"
                f"{int(steps[1] - steps[0]):+22d}"
            )


if __name__ == "__main__":
    main()
