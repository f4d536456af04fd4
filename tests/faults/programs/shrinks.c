/* A program sends from a mapped file, or receives into one, and the file has been cut: a signal where TCP says EFAULT.
 *
 *   shrinks send|recv jump|says|repair
 *
 * The handler leaves by a jump; or it says something on the same connection before it does; or it repairs the mapping
 * and returns, and the call goes on. In each case nothing is lost, and all connections go on at once.
 */
#include "ends.h"

#include <setjmp.h>
#include <stdint.h>
#include <sys/mman.h>

#define SIZE 40000
#define PAGE 4096
/* Less than a lock is waited for. */
#define SOON_S 15

static sigjmp_buf out;
static const char *how;
static volatile sig_atomic_t faults;

static void repair(char *at)
{
    at = (char *)((uintptr_t)at & ~(uintptr_t)(PAGE - 1));
    check(mmap(at, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == at);
}

static void on_fault(int number, siginfo_t *info, void *context)
{
    (void)number, (void)context;
    faults++;
    if (!strcmp(how, "repair")) {
        return repair(info->si_addr);
    }
    if (!strcmp(how, "says")) {
        send_pattern(sock, &ours, 100);
    }
    siglongjmp(out, 1);
}

int main(int count, char **words)
{
    struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO};
    int is_send, file;
    char name[] = "/tmp/shrinks-XXXXXX", *map;
    volatile ssize_t done = -2;
    struct timespec began, over;

    check(count > 2);
    is_send = !strcmp(words[1], "send");
    how = words[2];
    connect_to_child();
    alarm(LIMIT_S);
    check(sigaction(SIGBUS, &action, NULL) == 0);
    file = mkstemp(name);
    check(file >= 0 && unlink(name) == 0 && ftruncate(file, SIZE) == 0);
    map = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    check(map != MAP_FAILED && ftruncate(file, 0) == 0);
    clock_gettime(CLOCK_MONOTONIC, &began);
    if (!is_send) {
        ask('s', SIZE);
    }
    if (sigsetjmp(out, 1) == 0) {
        done = is_send ? send(sock, map, SIZE, MSG_NOSIGNAL) : recv(sock, map, SIZE, MSG_WAITALL);
    }
    if (!strcmp(how, "repair")) {
        if (done < 0) {
            /* Over TCP the program does it, and asks again. */
            check(errno == EFAULT);
            for (size_t at = 0; at < SIZE; at += PAGE) {
                repair(map + at);
            }
            done = is_send ? send(sock, map, SIZE, MSG_NOSIGNAL) : recv(sock, map, SIZE, MSG_WAITALL);
        }
        check(done == SIZE);
        if (is_send) {
            /* Zeros, and so none of the pattern. */
            tell('e', SIZE / 100);
            for (int at = 0; at < SIZE; at += 100) {
                char back[100];

                check(recv(sock, back, sizeof back, MSG_WAITALL) == sizeof back && back[99] == 0);
            }
            answered();
        } else {
            check(is_pattern(map, theirs, SIZE));
            theirs += SIZE;
        }
    } else {
        check(done < 0);
        if (!is_send) {
            check(receive_pattern(sock, &theirs, SIZE) == SIZE);
        }
        if (ours) {
            check(ask('r', ours).n == ours);
        }
    }
    ping(20);
    send_pattern(sock, &ours, 1000);
    check(ask('r', 1000).n == 1000);
    clock_gettime(CLOCK_MONOTONIC, &over);
    check(over.tv_sec - began.tv_sec < SOON_S);
    printf("{\"fine\": true, \"faults\": %s}\n", faults ? "true" : "false");
    finish();
    return 0;
}
