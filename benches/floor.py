#!/usr/bin/env python3
"""The least that a request costs a server that sleeps until it comes, beside TCP.

Two processes, each on a CPU of its own. The client pauses, sends a request and sleeps until the answer comes;
the server sleeps in `epoll_wait`. Over TCP the request is 64 bytes on a connection. In the other mode it is
a word in shared memory, and an eventfd wakes either end: no copy, no protocol, no library, nothing but the two
wake-ups that two sleeping ends need. What that costs no transport with sleeping ends goes below. Printed is the
CPU time of the server per request in alternating rounds, and the median and range of the pairs' ratios.

    benches/floor.py [--rounds N] [--requests N] [--gap-us N]
"""

import argparse
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

PROGRAM = r"""
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define CHECK(x) do { if (!(x)) { perror(#x); exit(1); } } while (0)

static struct {
    _Alignas(128) _Atomic uint32_t request;
    _Alignas(128) _Atomic uint32_t answer;
    _Alignas(128) double us;
} *shared;
static int is_tcp, requests, to_server, to_client;

static void pin(int cpu) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    CHECK(sched_setaffinity(0, sizeof set, &set) == 0);
}

static double cpu_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return t.tv_sec * 1e6 + t.tv_nsec / 1e3;
}

static void ring(int fd) {
    uint64_t one = 1;
    CHECK(write(fd, &one, 8) == 8);
}

/* A set with one descriptor, edge-triggered as far as it is an eventfd, which nobody reads. */
static int set_of(int fd, unsigned events) {
    struct epoll_event event = {.events = events};
    int set = epoll_create1(0);
    CHECK(set >= 0 && epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
    return set;
}

static void serve(int fd) {
    int set = is_tcp ? set_of(fd, EPOLLIN) : set_of(to_server, EPOLLIN | EPOLLET);
    struct epoll_event event;
    char message[64];
    double before = 0;

    for (int n = 0; n < requests;) {
        CHECK(epoll_wait(set, &event, 1, -1) == 1);
        if (n == requests / 4)
            before = cpu_us();
        if (is_tcp) {
            CHECK(read(fd, message, 64) == 64 && write(fd, message, 64) == 64);
            n++;
        } else if (shared->request != (uint32_t)n) {
            n++;
            shared->answer = (uint32_t)n;
            ring(to_client);
        }
    }
    shared->us = (cpu_us() - before) / (requests - requests / 4);
}

static void ask(int fd, int gap_us) {
    int set = set_of(to_client, EPOLLIN | EPOLLET);
    struct timespec gap = {0, gap_us * 1000L};
    struct epoll_event event;
    char message[64] = {0};

    prctl(PR_SET_TIMERSLACK, 1);
    for (int n = 1; n <= requests; n++) {
        if (gap_us)
            nanosleep(&gap, NULL);
        if (is_tcp) {
            CHECK(write(fd, message, 64) == 64 && read(fd, message, 64) == 64);
            continue;
        }
        shared->request = (uint32_t)n;
        ring(to_server);
        while (shared->answer != (uint32_t)n)
            CHECK(epoll_wait(set, &event, 1, -1) == 1);
    }
}

int main(int count, char **words) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM, 0), one = 1, status, fd;

    CHECK(count == 6);
    is_tcp = strcmp(words[1], "tcp") == 0;
    requests = atoi(words[2]);
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    to_server = eventfd(0, EFD_NONBLOCK);
    to_client = eventfd(0, EFD_NONBLOCK);
    CHECK(shared != MAP_FAILED && to_server >= 0 && to_client >= 0);
    CHECK(bind(listener, (void *)&address, length) == 0 && listen(listener, 1) == 0);
    CHECK(getsockname(listener, (void *)&address, &length) == 0);
    if (fork() == 0) {
        pin(atoi(words[4]));
        fd = accept(listener, NULL, NULL);
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        serve(fd);
        return 0;
    }
    pin(atoi(words[5]));
    fd = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(connect(fd, (void *)&address, length) == 0);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    ask(fd, atoi(words[3]));
    CHECK(wait(&status) > 0 && status == 0);
    printf("%f\n", shared->us);
    return 0;
}
"""


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--requests", type=int, default=400)
    parser.add_argument("--gap-us", type=int, default=200)
    options = parser.parse_args()
    cpus = sorted(os.sched_getaffinity(0))
    places = [str(cpus[0]), str(cpus[1 % len(cpus)])]
    with tempfile.TemporaryDirectory() as scratch:
        source = pathlib.Path(scratch, "floor.c")
        source.write_text(PROGRAM, encoding="utf-8")
        binary = source.with_suffix("")
        subprocess.run(["cc", "-O2", "-o", binary, source], check=True)

        def once(mode):
            words = [mode, str(options.requests), str(options.gap_us), *places]
            out = subprocess.run([binary, *words], check=True, capture_output=True, text=True, timeout=120)
            return float(out.stdout)

        rounds = []
        for number in range(options.rounds + 1):
            order = ["tcp", "words"] if number % 2 else ["words", "tcp"]
            rounds.append({mode: once(mode) for mode in order})
    rounds = rounds[1:]  # the first counts for nothing
    ratios = sorted(r["words"] / r["tcp"] for r in rounds)
    medians = {mode: statistics.median(r[mode] for r in rounds) for mode in rounds[0]}
    print(
        f"CPU time of a sleeping server per request, pause {options.gap_us} us, {options.rounds} rounds of"
        f" {options.requests}: TCP {medians['tcp']:.1f} us, words in shared memory {medians['words']:.1f} us,"
        f" ratio {statistics.median(ratios):.2f} [{ratios[0]:.2f} - {ratios[-1]:.2f}]"
    )


if __name__ == "__main__":
    sys.exit(main())
