/* What comes with EPIPE: the signal, as the kernel raises it, and not one byte.
 *
 *   sigpipe HOW END       HOW: handled, blocked, ignored, jump, nosignal, filtered (the image begins with a seccomp
 *                         filter that refuses signals to threads); END: ours (the program shut down its sending
 *                         side), theirs (the peer is gone), reset (the peer closed with bytes unread)
 *   sigpipe race HELD     a thread writes while another is held where its `shutdown` enters the kernel, if HELD is 1
 *
 * Prints one line of JSON. */
#include "ends.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <setjmp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/sendfile.h>
#include <sys/uio.h>

#define SAYS 512

static atomic_int signals;
static char details[SAYS];
static sigjmp_buf back;
static int jumps;

static void tell_of(const siginfo_t *info, pid_t thread)
{
    snprintf(details, sizeof details, "[%d, %d, %d, %d, %d]", info->si_signo, info->si_code,
             info->si_pid == getpid(), (int)info->si_uid == (int)getuid(), thread == thread_id());
}

static void handle(int number, siginfo_t *info, void *context)
{
    (void)number, (void)context;
    signals++;
    tell_of(info, thread_id());
    if (jumps) {
        siglongjmp(back, 1);
    }
}

/* Signals to threads are refused with EPERM from here on, also in an image that is executed. */
static void refuse(void)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_rt_tgsigqueueinfo, 2, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_tgkill, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
    };
    struct sock_fprog program = {sizeof code / sizeof *code, code};

    check(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    check(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
}

/* What the kernel itself has for the descriptor, past the library. */
static long kernel_receive(int fd, char *to, size_t n)
{
#ifdef __x86_64__
    register long r10 __asm__("r10") = MSG_DONTWAIT, r8 __asm__("r8") = 0, r9 __asm__("r9") = 0;
    long got;

    __asm__ volatile("syscall"
                     : "=a"(got)
                     : "a"(SYS_recvfrom), "D"(fd), "S"(to), "d"(n), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    return got;
#else
    (void)fd, (void)to, (void)n;
    return 0;
#endif
}

static ssize_t one_send(int i, int flags)
{
    struct iovec parts[2] = {{"abc", 3}, {"def", 3}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
    static int file = -1;

    if (flags) {
        return i % 2 ? sendmsg(sock, &message, flags) : send(sock, "abc", 3, flags);
    }
    switch (i) {
    case 0:
        return write(sock, "abc", 3);
    case 1:
        return writev(sock, parts, 2);
    case 2:
        return sendmsg(sock, &message, 0);
    default:
        if (file < 0) {
            file = open("/proc/self/exe", O_RDONLY);
        }
        lseek(file, 0, SEEK_SET);
        return sendfile(sock, file, NULL, 3);
    }
}

static void once(const char *how, const char *end)
{
    struct sigaction action = {.sa_sigaction = handle, .sa_flags = SA_SIGINFO};
    sigset_t pipes;
    int flags = !strcmp(how, "nosignal") ? MSG_NOSIGNAL : 0;

    connect_to_child();
    check(sigaction(SIGPIPE, &action, NULL) == 0);
    if (!strcmp(how, "ignored")) {
        signal(SIGPIPE, SIG_IGN);
    }
    sigemptyset(&pipes);
    sigaddset(&pipes, SIGPIPE);
    if (!strcmp(how, "blocked")) {
        check(sigprocmask(SIG_BLOCK, &pipes, NULL) == 0);
    }
    if (!strcmp(end, "ours")) {
        check(shutdown(sock, SHUT_WR) == 0);
    } else {
        if (!strcmp(end, "reset")) {
            send_pattern(sock, &ours, 100);
        }
        ask('c', 0);
        nap_us(20000);
        if (!strcmp(end, "theirs")) {
            /* The first is answered with a reset, which is told once. */
            check(send(sock, "x", 1, MSG_NOSIGNAL) == 1);
            nap_us(20000);
        }
        /* Behind the reset there is no error but this one. */
        for (int i = 0; i < 3; i++) {
            char byte;

            recv(sock, &byte, 1, MSG_DONTWAIT);
        }
    }
    printf("{\"calls\": [");
    jumps = !strcmp(how, "jump");
    for (int i = 0; i < 4; i++) {
        struct timespec now = {0, 0};
        siginfo_t info;
        ssize_t sent = -2;

        errno = 0;
        signals = 0;
        strcpy(details, "null");
        if (sigsetjmp(back, 1) == 0) {
            sent = one_send(i, flags);
        }
        printf("%s[%d, \"%s\", %d, ", i ? ", " : "", (int)sent, sent == -1 ? strerrorname_np(errno) : "", signals);
        if (sigtimedwait(&pipes, &info, &now) == SIGPIPE) {
            tell_of(&info, thread_id());
        }
        printf("%s]", details);
    }
    printf("]}\n");
    fflush(stdout);
    close(sock);
    dismiss();
    exit(0);
}

static void *writer(void *count)
{
    long *sent = count;
    char byte = 'x';

    for (;;) {
        ssize_t n = write(sock, &byte, 1);

        if (n != 1) {
            check(n == -1 && errno == EPIPE);
            return NULL;
        }
        ++*sent;
        nap_us(500);
    }
}

static void race(int held)
{
    struct sigaction action = {.sa_sigaction = handle, .sa_flags = SA_SIGINFO};
    long sent = 0, got = 0, odd = 0;
    struct sockaddr_in address;
    int hear = loopback_listener(&address), status, fd;
    char room[4096];
    pthread_t thread;
    ssize_t n;
    pid_t reader = fork();

    check(reader >= 0);
    if (reader == 0) {
        fd = socket(AF_INET, SOCK_STREAM, 0);
        close(hear);
        alarm(LIMIT_S);
        check(connect(fd, (struct sockaddr *)&address, sizeof address) == 0);
        for (int i = 0; i < 50; i++) {
            check(recv(fd, room, 100, MSG_WAITALL) == 100 && send(fd, room, 100, 0) == 100);
        }
        while ((n = recv(fd, room, sizeof room, 0)) > 0) {
            got += n;
            for (ssize_t i = 0; i < n; i++) {
                odd += room[i] != 'x';
            }
        }
        check(n == 0);
        /* What comes behind the end, past the library if it is there. */
        nap_us(100000);
        n = kernel_receive(fd, room, sizeof room);
        odd += n > 0 ? n : 0;
        printf("{\"got\": %ld, \"odd\": %ld, ", got, odd);
        fflush(stdout);
        exit(0);
    }
    sock = accept(hear, NULL, NULL);
    check(sock >= 0 && sigaction(SIGPIPE, &action, NULL) == 0);
    for (int i = 0; i < 50; i++) {
        check(send(sock, room, 100, 0) == 100 && recv(sock, room, 100, MSG_WAITALL) == 100);
    }
    check(pthread_create(&thread, NULL, writer, &sent) == 0);
    nap_us(20000);
    if (held) {
        check(ptrace(PTRACE_TRACEME, 0, 0, 0) == 0);
        syscall(SYS_tgkill, getpid(), thread_id(), SIGSTOP);
    }
    check(shutdown(sock, SHUT_WR) == 0);
    pthread_join(thread, NULL);
    check(waitpid(reader, &status, 0) == reader && status == 0);
    printf("\"sent\": %ld, \"signals\": %d, \"details\": %s}\n", sent, signals, details);
    fflush(stdout);
    exit(0);
}

/* Lets a thread run to the entry of its `shutdown`, and holds it there for a while. */
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
    nap_us(50000);
    check(ptrace(PTRACE_DETACH, pid, 0, 0) == 0);
}

int main(int argc, char **argv)
{
    int status;
    pid_t pid;

    check(argc == 3);
    alarm(LIMIT_S);
    if (!strcmp(argv[1], "filtered")) {
        refuse();
        execl(argv[0], argv[0], "handled", argv[2], NULL);
        return 1;
    }
    if (strcmp(argv[1], "race")) {
        once(argv[1], argv[2]);
    }
    pid = fork();
    check(pid >= 0);
    if (pid == 0) {
        alarm(LIMIT_S);
        race(atoi(argv[2]));
    }
    if (atoi(argv[2])) {
        hold(pid);
    }
    check(waitpid(pid, &status, 0) == pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}
