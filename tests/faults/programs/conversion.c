/* Sockets asked for by the families of the historic SDP stack. Each scenario prints one line of JSON: what the calls
 * told. Those without a number of their own take the families as arguments. */
#include "base.h"
#include "../../../packaging/sdp.h"

#include <fcntl.h>
#include <netinet/tcp.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/un.h>

#define EARLY 26
#define ROUNDS 60
#define COUNT(table) (sizeof(table) / sizeof *(table))

typedef union {
    struct sockaddr any;
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
    struct sockaddr_storage room;
} address_t;

/* Loopback, any port, under the given family, and its length. */
static socklen_t loopback(address_t *address, int family, int is_v6)
{
    memset(address, 0, sizeof *address);
    if (is_v6) {
        address->v6.sin6_family = family;
        address->v6.sin6_addr = in6addr_loopback;
        return sizeof address->v6;
    }
    address->v4.sin_family = family;
    address->v4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return sizeof address->v4;
}

static int told_by(int (*ask)(int, struct sockaddr *, socklen_t *), int fd)
{
    address_t address;
    socklen_t len = sizeof address;

    check(ask(fd, &address.any, &len) == 0);
    return address.any.sa_family;
}

static void ping(int fd, int is_server)
{
    char text[16], back[16];

    for (int i = 0; i < ROUNDS; i++) {
        snprintf(text, sizeof text, "%15d", i);
        if (is_server) {
            check(recv(fd, back, sizeof back, MSG_WAITALL) == sizeof back);
            check(memcmp(text, back, sizeof back) == 0);
        }
        check(send(fd, text, sizeof text, 0) == sizeof text);
        if (!is_server) {
            check(recv(fd, back, sizeof back, MSG_WAITALL) == sizeof back);
            check(memcmp(text, back, sizeof back) == 0);
        }
    }
}

/* The same three calls by `syscall`. */
static int by_number;

static int open_socket(int domain, int type, int protocol)
{
    return by_number ? (int)syscall(SYS_socket, domain, type, protocol) : socket(domain, type, protocol);
}

static int bind_socket(int fd, const struct sockaddr *address, socklen_t len)
{
    return by_number ? (int)syscall(SYS_bind, fd, address, len) : bind(fd, address, len);
}

static int connect_socket(int fd, const struct sockaddr *address, socklen_t len)
{
    return by_number ? (int)syscall(SYS_connect, fd, address, len) : connect(fd, address, len);
}

/* Two strangers, connected by sockets of family `domain`, with addresses of family `bound` and `asked`. */
static void talk(int domain, int bound, int asked)
{
    int is_v6 = domain == AF_INET6_SDP, port[2], client_told[2];
    address_t address;
    socklen_t len;
    pid_t child;

    check(pipe(port) == 0 && pipe(client_told) == 0);
    child = fork();
    check(child >= 0);
    if (child == 0) {
        int fd, told[2];
        in_port_t where;

        check(read(port[0], &where, sizeof where) == sizeof where);
        fd = open_socket(domain, SOCK_STREAM | SOCK_CLOEXEC, IPPROTO_TCP);
        check(fd >= 0 && fcntl(fd, F_GETFD) == FD_CLOEXEC);
        len = loopback(&address, asked, is_v6);
        address.v4.sin_port = where;
        check(connect_socket(fd, &address.any, len) == 0);
        check(address.any.sa_family == asked);
        told[0] = told_by(getsockname, fd);
        told[1] = told_by(getpeername, fd);
        ping(fd, 0);
        check(write(client_told[1], told, sizeof told) == sizeof told);
        exit(0);
    } else {
        int hear = open_socket(domain, SOCK_STREAM, 0), fd, told[2], status;
        address_t peer;
        socklen_t peer_len = sizeof peer;

        len = loopback(&address, bound, is_v6);
        check(hear >= 0);
        check(bind_socket(hear, &address.any, len) == 0);
        check(address.any.sa_family == bound && listen(hear, 4) == 0);
        printf("[%d", told_by(getsockname, hear));
        len = sizeof address;
        check(getsockname(hear, &address.any, &len) == 0);
        check(write(port[1], &address.v4.sin_port, sizeof address.v4.sin_port) == 2);
        fd = accept(hear, &peer.any, &peer_len);
        check(fd >= 0);
        ping(fd, 1);
        check(read(client_told[0], told, sizeof told) == sizeof told);
        check(waitpid(child, &status, 0) == child && status == 0);
        printf(", %d, %d, %d, %d, %d]\n", peer.any.sa_family, told_by(getsockname, fd),
               told_by(getpeername, fd), told[0], told[1]);
    }
}

/* What `socket` answers: 0 or an error number. */
static void families(void)
{
    static const int wanted[][3] = {
        {EARLY, SOCK_STREAM, 0}, {27, SOCK_STREAM, 0}, {28, SOCK_STREAM, 0},
        {27, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, IPPROTO_TCP},
        {27, SOCK_DGRAM, 0}, {28, SOCK_SEQPACKET, 0}, {27, SOCK_STREAM, IPPROTO_UDP},
        {27, SOCK_STREAM | 0x4000000, 0}, {29, SOCK_STREAM, 0}, {25, SOCK_STREAM, 0},
    };

    for (size_t i = 0; i < COUNT(wanted); i++) {
        int fd = socket(wanted[i][0], wanted[i][1], wanted[i][2]);

        printf("%s%d", i ? ", " : "[", fd < 0 ? errno : 0);
        if (fd >= 0) {
            int want = wanted[i][1] & SOCK_NONBLOCK;

            check((fcntl(fd, F_GETFL) & O_NONBLOCK) == (want ? O_NONBLOCK : 0));
            close(fd);
        }
    }
    printf("]\n");
}

static int number_of(int fd, int level, int name)
{
    int value = 12345;
    socklen_t len = sizeof value;

    return getsockopt(fd, level, name, &value, &len) == 0 && len == sizeof value ? value : errno + 10000;
}

static int given(int fd, int level, int name, int value)
{
    return setsockopt(fd, level, name, &value, sizeof value) == 0 ? 0 : errno;
}

/* Options of a socket of family `domain`: what is told, what each value came to. */
static void options(int domain)
{
    static const int values[] = {0, 4096, 65536, 1048576, 1048577, 4095, 1, -1};
    int fd = socket(domain, SOCK_STREAM, 0), copy, level, on = 1, short_value;
    char *wall = mmap(0, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    address_t address;
    socklen_t len, n;

    check(fd >= 0 && wall != MAP_FAILED && mprotect(wall + 4096, 4096, PROT_NONE) == 0);
    printf("{\"unset\": [%d, %d], \"values\": [", number_of(fd, IPPROTO_TCP, SDP_ZCOPY_THRESH),
           number_of(fd, SOL_SDP, SDP_ZCOPY_THRESH));
    for (size_t i = 0; i < COUNT(values); i++) {
        level = i % 2 ? SOL_SDP : IPPROTO_TCP;
        printf("%s[%d, ", i ? ", " : "", given(fd, level, SDP_ZCOPY_THRESH, values[i]));
        printf("%d]", number_of(fd, SOL_SDP, SDP_ZCOPY_THRESH));
    }
    copy = dup(fd);
    printf("], \"copy\": %d", number_of(copy, IPPROTO_TCP, SDP_ZCOPY_THRESH));
    check(setsockopt(fd, SOL_SDP, SDP_ZCOPY_THRESH, &on, 3) < 0);
    printf(", \"bad\": [%d", errno);
    check(setsockopt(fd, SOL_SDP, SDP_ZCOPY_THRESH, wall + 4096, 4) < 0);
    printf(", %d", errno);
    n = sizeof on;
    check(getsockopt(fd, SOL_SDP, SDP_ZCOPY_THRESH, wall + 4096, &n) < 0);
    printf(", %d", errno);
    check(getsockopt(fd, SOL_SDP, SDP_ZCOPY_THRESH, &on, (void *)(wall + 4096)) < 0);
    printf(", %d", errno);
    n = 2;
    short_value = 0x7f7f7f7f;
    check(getsockopt(fd, SOL_SDP, SDP_ZCOPY_THRESH, &short_value, &n) == 0 && n == 2);
    printf("], \"short\": %d", short_value == 0x7f7f0000);

    printf(", \"bind\": [%d", number_of(fd, IPPROTO_TCP, SDP_LAST_BIND_ERR));
    len = loopback(&address, AF_INET, 0);
    address.v4.sin_addr.s_addr = inet_addr("192.0.2.77");
    check(bind(fd, &address.any, len) < 0 && errno == EADDRNOTAVAIL);
    printf(", %d", number_of(fd, IPPROTO_TCP, SDP_LAST_BIND_ERR));
    len = loopback(&address, AF_INET, 0);
    check(bind(fd, &address.any, len) == 0);
    printf(", %d, %d]", number_of(fd, SOL_SDP, SDP_LAST_BIND_ERR),
           given(fd, SOL_SDP, SDP_LAST_BIND_ERR, 0));

    printf(", \"keepalive\": [%d", given(fd, 27, SO_KEEPALIVE, 1));
    printf(", %d", number_of(fd, SOL_SOCKET, SO_KEEPALIVE));
    printf(", %d]}\n", given(fd, 27, SO_BROADCAST, 1));
}

/* Addresses that cannot be right: what `bind` and `connect` say to them. */
static void bad_addresses(int domain)
{
    static const socklen_t lengths[] = {0, 2, 15, sizeof(struct sockaddr_storage) + 1};
    address_t address;
    char room[256];
    int is_first = 1;

    memset(room, 0, sizeof room);
    loopback(&address, AF_INET, 0);
    memcpy(room, &address.v4, sizeof address.v4);
    for (size_t i = 0; i < COUNT(lengths) + 2; i++) {
        const struct sockaddr *at = (void *)room;
        socklen_t len = sizeof address.v4;
        int fd = socket(domain, SOCK_STREAM, 0);

        check(fd >= 0);
        if (i < COUNT(lengths)) {
            len = lengths[i];
        } else {
            at = i == COUNT(lengths) ? 0 : (void *)8;
        }
        for (int connects = 0; connects < 2; connects++) {
            int result = connects ? connect(fd, at, len) : bind(fd, at, len);

            printf("%s%d", is_first ? "[" : ", ", result < 0 ? errno : 0);
            is_first = 0;
        }
        close(fd);
    }
    printf("]\n");
}

/* Connecting to somebody's port; 0 or the error number. */
static void reach(int domain, const char *host, int port)
{
    int fd = socket(domain, SOCK_STREAM, 0);
    address_t address;
    socklen_t len = loopback(&address, domain, 0);

    check(fd >= 0);
    address.v4.sin_port = htons(port);
    address.v4.sin_addr.s_addr = inet_addr(host);
    printf("%d\n", connect(fd, &address.any, len) == 0 ? 0 : errno);
}

/* A listener of family `domain` that says its port and waits to be ended. */
static void hear(int domain)
{
    int fd = socket(domain, SOCK_STREAM, 0);
    address_t address;
    socklen_t len = loopback(&address, AF_INET, 0);

    check(fd >= 0 && bind(fd, &address.any, len) == 0 && listen(fd, 4) == 0);
    check(getsockname(fd, &address.any, &len) == 0);
    printf("%d\n", ntohs(address.v4.sin_port));
    fflush(stdout);
    pause();
}

/* Sockets that are nobody's of ours: made, bound, connected. The program is traced. */
static void foreign(void)
{
    int local = socket(AF_UNIX, SOCK_DGRAM, 0), pair[2];
    struct sockaddr_un path = {.sun_family = AF_UNIX};
    address_t address;
    socklen_t len = loopback(&address, AF_INET, 0);

    check(local >= 0);
    for (int i = 0; i < 3; i++) {
        int fd = socket(AF_INET, SOCK_DGRAM, 0);

        check(fd >= 0 && bind(fd, &address.any, len) == 0);
        address.v4.sin_port = htons(9);
        check(connect(fd, &address.any, len) == 0);
        address.v4.sin_port = 0;
        address.any.sa_family = AF_INET_SDP;
        check(bind(fd, &address.any, len) < 0);
        address.any.sa_family = AF_INET;
        check(setsockopt(fd, SOL_SDP, SDP_ZCOPY_THRESH, &len, sizeof len) < 0);
        close(fd);
    }
    snprintf(path.sun_path + 1, sizeof path.sun_path - 1, "conversion-%d", getpid());
    check(bind(local, (void *)&path, sizeof path) == 0);
    check(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
    printf("[]\n");
}

/* An explicit server that forks for each of its two clients, one of them with a socket that was another's number; what
 * `getsockname` tells of a socket that has been disconnected, and whether it connects again. */
static void lives(void)
{
    int hear = socket(AF_INET_SDP, SOCK_STREAM, 0), clients, status, told[3];
    address_t address, none = {.any.sa_family = AF_UNSPEC};
    socklen_t len = loopback(&address, AF_INET_SDP, 0);

    check(hear >= 0 && bind(hear, &address.any, len) == 0 && listen(hear, 4) == 0);
    check(getsockname(hear, &address.any, &len) == 0);
    clients = fork();
    if (clients == 0) {
        int old = socket(AF_INET, SOCK_STREAM, 0), fresh = socket(AF_INET_SDP, SOCK_STREAM, 0);

        close(hear);
        check(fcntl(old, F_SETFL, O_NONBLOCK) == 0);
        check(dup2(fresh, old) == old && close(fresh) == 0);
        check((fcntl(old, F_GETFL) & O_NONBLOCK) == 0);
        for (int i = 0; i < 2; i++) {
            address.any.sa_family = i ? EARLY : AF_INET_SDP;
            check(connect(old, &address.any, len) == 0);
            ping(old, 0);
            shutdown(old, SHUT_WR);
            check(recv(old, &status, 1, 0) == 0);
            check(connect(old, &none.any, sizeof none.any) == 0);
        }
        exit(0);
    }
    for (int i = 0; i < 2; i++) {
        int fd = accept(hear, NULL, NULL);
        pid_t server;

        check(fd >= 0);
        server = fork();
        if (server == 0) {
            close(hear);
            ping(fd, 1);
            check(recv(fd, told, 1, 0) == 0);
            exit(0);
        }
        close(fd);
        check(waitpid(server, &status, 0) == server && status == 0);
    }
    check(waitpid(clients, &status, 0) == clients && status == 0);
    printf("[]\n");
}

/* Where the library has nothing to give: a child on its parent's memory, a process in a sandbox. What `socket` answers
 * there, and what becomes of a socket in a new image. */
static void elsewhere(const char *self)
{
    struct sock_filter allow = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    struct sock_fprog filter = {.len = 1, .filter = &allow};
    volatile int seen = -1;
    int fd = socket(AF_INET_SDP, SOCK_STREAM, 0), status;
    char number[16];

    check(fd >= 0 && given(fd, SOL_SDP, SDP_ZCOPY_THRESH, 4096) == 0);
    if (vfork() == 0) {
        seen = socket(AF_INET_SDP, SOCK_STREAM, 0) < 0 ? errno : 0;
        _exit(0);
    }
    check(wait(&status) > 0 && status == 0);
    printf("[%d", seen);
    fflush(stdout);
    snprintf(number, sizeof number, "%d", fd);
    if (fork() == 0) {
        execl(self, self, "inherited", number, NULL);
    }
    check(wait(&status) > 0 && status == 0);
    check(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    check(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0);
    seen = socket(AF_INET_SDP, SOCK_STREAM, 0) < 0 ? errno : 0;
    printf(", %d]\n", seen);
}

/* A socket of AF_INET_SDP in a new image: what `bind` says to a historic family, and to an ordinary one. */
static void inherited(int fd)
{
    address_t address;
    socklen_t len = loopback(&address, AF_INET_SDP, 0);

    printf(", %d", bind(fd, &address.any, len) == 0 ? 0 : errno);
    address.any.sa_family = AF_INET;
    printf(", %d", bind(fd, &address.any, len) == 0 && listen(fd, 1) == 0 ? 0 : errno);
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "";
    int a = argc > 2 ? atoi(argv[2]) : 0;

    alarm(30);
    if (argc > 3 && strcmp(argv[argc - 1], "syscall") == 0) {
        by_number = 1;
    }
    if (strcmp(what, "families") == 0) {
        families();
    } else if (strcmp(what, "talk") == 0) {
        talk(a, atoi(argv[3]), atoi(argv[4]));
    } else if (strcmp(what, "options") == 0) {
        options(a);
    } else if (strcmp(what, "bad") == 0) {
        bad_addresses(a);
    } else if (strcmp(what, "reach") == 0) {
        reach(a, argv[3], atoi(argv[4]));
    } else if (strcmp(what, "foreign") == 0) {
        foreign();
    } else if (strcmp(what, "elsewhere") == 0) {
        elsewhere(argv[0]);
    } else if (strcmp(what, "inherited") == 0) {
        inherited(a);
    } else if (strcmp(what, "lives") == 0) {
        lives();
    } else if (strcmp(what, "hear") == 0) {
        hear(a);
    } else {
        return 2;
    }
    return 0;
}
