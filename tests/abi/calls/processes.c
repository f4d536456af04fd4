/* Processes: forked, replaced, sandboxed, of another identity. */
#include "calls.h"

#include <dlfcn.h>
#include <grp.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pty.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

/* execl and its relatives with N arguments: prints them by way of the shell-free helper below. */
int show(int argc, char **argv) {
    for (int i = 0; i < argc; i++) printf("%d=%s\n", i, argv[i]);
    const char *e = getenv("HOOKS_GIVEN");
    printf("env=%s\n", e ? e : "-");
    return 0;
}

int exec_list(const char *self, const char *which, int n) {
    static char *env[] = {"HOOKS_GIVEN=yes", 0};
    char preload[4096];
    char *env2[] = {env[0], preload, 0};
    const char *lib = getenv("LD_PRELOAD");
    if (lib) snprintf(preload, sizeof preload, "LD_PRELOAD=%s", lib);
    char **e = lib ? env2 : env;
#define A "a", "b", "c", "d", "e", "f", "g", "h"
    const char *p = self, *z = "show";
    if (!strcmp(which, "execl") || !strcmp(which, "execlp")) {
        int (*f)(const char *, const char *, ...) = !strcmp(which, "execl") ? execl : execlp;
        switch (n) {
        case 1: f(p, p, z, (char *)0); break;
        case 2: f(p, p, z, "a", (char *)0); break;
        case 3: f(p, p, z, "a", "b", (char *)0); break;
        case 4: f(p, p, z, "a", "b", "c", (char *)0); break;
        case 5: f(p, p, z, "a", "b", "c", "d", (char *)0); break;
        case 6: f(p, p, z, "a", "b", "c", "d", "e", (char *)0); break;
        default: f(p, p, z, A, A, A, (char *)0); break;
        }
    } else {
        switch (n) {
        case 1: execle(p, p, z, (char *)0, e); break;
        case 2: execle(p, p, z, "a", (char *)0, e); break;
        case 3: execle(p, p, z, "a", "b", (char *)0, e); break;
        case 4: execle(p, p, z, "a", "b", "c", (char *)0, e); break;
        case 5: execle(p, p, z, "a", "b", "c", "d", (char *)0, e); break;
        case 6: execle(p, p, z, "a", "b", "c", "d", "e", (char *)0, e); break;
        default: execle(p, p, z, A, A, A, (char *)0, e); break;
        }
    }
    return 4;
}

/* A vfork child closes everything and executes; the parent's connection goes on. */
int vfork_closes(const char *kind) {
    int s[2];
    char c;
    pair(kind, s);
    for (int round = 0; round < 20; round++) {
        pid_t child = vfork();
        if (child == 0) {
            dup2(s[0], 0);
            for (int f = 3; f < 200; f++) close(f);
            execl("/bin/true", "true", (char *)0);
            _exit(9);
        }
        int status;
        MUST(waitpid(child, &status, 0));
        if (status) printf("status %d\n", status);
        if (write(s[0], "x", 1) != 1 || read(s[1], &c, 1) != 1 || c != 'x') die("there");
        if (write(s[1], "y", 1) != 1 || read(s[0], &c, 1) != 1 || c != 'y') die("back");
    }
    pid_t child = vfork();
    if (child == 0) {
        close_range(3, ~0U, 0);
        _exit(7);
    }
    int status;
    MUST(waitpid(child, &status, 0));
    printf("exit %d\n", WEXITSTATUS(status));
    if (write(s[0], "z", 1) != 1 || read(s[1], &c, 1) != 1 || c != 'z') die("after close_range");
    printf("ok\n");
    return 0;
}

/* Ways to become two. */
static int child_of_clone(void *fd) {
    return write(*(int *)fd, "c", 1) == 1 ? 5 : 6;
}

int forks(const char *kind) {
    int s[2], status;
    char c;
    pair(kind, s);
    pid_t (*ways[])(void) = {fork, _Fork, (pid_t(*)(void))dlsym(RTLD_DEFAULT, "__fork")};
    for (int i = 0; i < 3; i++) {
        pid_t child = ways[i]();
        if (child == 0) _exit(write(s[0], "f", 1) == 1 ? 5 : 6);
        waitpid(child, &status, 0);
        if (read(s[1], &c, 1) != 1) die("read");
        printf("fork %d %c\n", WEXITSTATUS(status), c);
    }
    char *stack = malloc(1 << 18);
    pid_t child = clone(child_of_clone, stack + (1 << 18), SIGCHLD, &s[0]);
    waitpid(child, &status, 0);
    if (read(s[1], &c, 1) != 1) die("read");
    printf("clone %d %c\n", WEXITSTATUS(status), c);
    child = clone(child_of_clone, stack + (1 << 18), CLONE_VM | CLONE_VFORK | SIGCHLD, &s[0]);
    waitpid(child, &status, 0);
    if (read(s[1], &c, 1) != 1) die("read");
    printf("clone vm %d %c\n", WEXITSTATUS(status), c);
    say("clone nothing", clone(0, 0, 0, 0));
    child = syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
    if (child == 0) _exit(write(s[0], "r", 1) == 1 ? 5 : 6);
    waitpid(child, &status, 0);
    if (read(s[1], &c, 1) != 1) die("read");
    printf("raw %d %c\n", WEXITSTATUS(status), c);
    int master;
    child = forkpty(&master, 0, 0, 0);
    if (child == 0) {
        write(s[0], isatty(0) && isatty(1) && isatty(2) ? "t" : "n", 1);
        _exit(5);
    }
    waitpid(child, &status, 0);
    if (read(s[1], &c, 1) != 1) die("read");
    printf("forkpty %d %c\n", WEXITSTATUS(status), c);
    child = fork();
    if (child == 0) {
        if (daemon(0, 0)) _exit(1);
        write(s[0], getppid() != 0 ? "d" : "n", 1);
        _exit(0);
    }
    waitpid(child, &status, 0);
    if (read(s[1], &c, 1) != 1) die("read");
    printf("daemon %d %c\n", WEXITSTATUS(status), c);
    posix_spawn_file_actions_t fa;
    posix_spawn_file_actions_init(&fa);
    posix_spawn_file_actions_adddup2(&fa, s[0], 1);
    MUST(posix_spawn(&child, "/bin/echo", &fa, 0, (char *[]){"echo", "spawned", 0}, environ));
    waitpid(child, &status, 0);
    char line[16] = {0};
    if (recv(s[1], line, 8, MSG_WAITALL) != 8) die("read");
    printf("spawn %d %s", WEXITSTATUS(status), line);
    return 0;
}

static void noop(int n) { (void)n; }

/* A sandbox: read, write, exit; nothing else may happen afterwards. */
int sandbox(const char *kind, int how) {
    int s[2];
    char c;
    pair(kind, s);
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_read, 4, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_write, 3, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_exit_group, 2, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_rt_sigreturn, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog prog = {sizeof code / sizeof *code, code};
    signal(SIGUSR1, noop);
    MUST(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    /* Probes change nothing. */
    say("probe", prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, 0, 0, 0));
    say("probe", syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, 0));
    fflush(stdout);
    if (how == 0) MUST(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &prog));
    if (how == 1) MUST(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &prog));
    if (how == 2) MUST(prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT));
    for (int i = 0; i < 100; i++) {
        if (write(s[0], "x", 1) != 1 || read(s[1], &c, 1) != 1) die("there");
        if (write(s[1], "x", 1) != 1 || read(s[0], &c, 1) != 1) die("back");
    }
    write(1, "went on\n", 8);
    if (how == 2) syscall(SYS_exit, 0);
    _exit(0);
}

/* Identity: toggling and refusing. Needs no privilege of its own. */
int identity(const char *kind) {
    int s[2];
    char c;
    pair(kind, s);
    uid_t u = getuid();
    gid_t g = getgid();
    say("setuid", setuid(u));
    say("setresuid", setresuid(-1, u, -1));
    say("setreuid", setreuid(-1, u));
    say("setgid", setgid(g));
    say("setresgid", setresgid(g, g, g));
    say("setregid", setregid(g, -1));
    say("setgroups", u == 0 ? 0 : setgroups(0, 0));
    say("chroot", chroot("/nonexistent"));
    say("unshare", unshare(0));
    for (int i = 0; i < 50; i++)
        if (write(s[0], "x", 1) != 1 || read(s[1], &c, 1) != 1) die("there");
    printf("ok\n");
    return 0;
}
