/* What a fork child of a server costs, counted in page faults.
 *
 *   forked CHILDREN
 *
 * A server that forks for each connection, one after the other; the child echoes one message. Prints one line
 * of JSON: the fewest faults that a child had, and the fewest that its parent had for one connection (the others
 * met something by chance, such as reclaim). Every other child looks, instead, how many private pages of the
 * library it has written, and ends with that number: the fewest of these is printed, too, and how many mappings
 * the library's file has, the highest descriptor, and whether shared mappings lie where they cost least.
 */
#include "base.h"

#include <dirent.h>
#include <limits.h>
#include <sys/resource.h>

/* More than the page of counters takes. */
#define COUNTERS_BYTES (2ul << 20)

static void ask(struct sockaddr_in *to, int times)
{
    char byte = 1;

    for (; times > 0; times--) {
        int fd = socket(AF_INET, SOCK_STREAM, 0);

        check(fd >= 0 && connect(fd, (struct sockaddr *)to, sizeof *to) == 0);
        check(write(fd, &byte, 1) == 1 && read(fd, &byte, 1) == 1);
        check(shutdown(fd, SHUT_WR) == 0 && read(fd, &byte, 1) == 0);
        close(fd);
    }
}

static long faults_so_far(void)
{
    struct rusage used;

    check(getrusage(RUSAGE_SELF, &used) == 0);
    return used.ru_minflt;
}

/* Pages that only this process has, and has written, in the library's mappings and in those without a name behind
 * them, which hold what starts as zeros. */
static int written_pages(void)
{
    FILE *maps = fopen("/proc/self/smaps", "r");
    char line[512], name[256];
    int of_library = 0, kib = 0, one;

    check(maps != NULL);
    while (fgets(line, sizeof line, maps)) {
        if (sscanf(line, "%*x-%*x %*s %*x %*s %*u %255s", name) == 1)
            of_library = strstr(name, "libsdp.so") != NULL;
        else if (of_library && sscanf(line, "Private_Dirty: %d kB", &one) == 1)
            kib += one;
    }
    fclose(maps);
    return kib * 1024 / (int)sysconf(_SC_PAGESIZE);
}

/* Mappings of the library's file. */
static int mappings(void)
{
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[512];
    int found = 0;

    check(maps != NULL);
    while (fgets(line, sizeof line, maps))
        found += strstr(line, "libsdp.so") != NULL;
    fclose(maps);
    return found;
}

/* The highest open descriptor, hidden ones included. */
static int highest(void)
{
    DIR *open_files = opendir("/proc/self/fd");
    struct dirent *one;
    int most = -1;

    check(open_files != NULL);
    while ((one = readdir(open_files)) != NULL)
        if (atoi(one->d_name) > most)
            most = atoi(one->d_name);
    closedir(open_files);
    return most;
}

/* Whether what every child touches of shared mappings lies where the kernel copies tables of pages anyway, or could
 * not: the counters begin behind the loader, unless something else is there, and family memory ends where the kernel puts
 * mappings next, at the end of a piece that it maps at a time. */
static int is_placed(void)
{
    FILE *maps = fopen("/proc/self/maps", "r");
    unsigned long from, to, before = 0;
    char line[512], name[256];
    int of_loader = 0, counters = 0, family = 0;

    check(maps != NULL);
    while (fgets(line, sizeof line, maps)) {
        name[0] = 0;
        check(sscanf(line, "%lx-%lx %*s %*x %*s %*u %255s", &from, &to, name) >= 2);
        if (of_loader && from != before)
            counters = strstr(name, "sdp-stats") ? from - before <= 3 * 4096 : from - before <= COUNTERS_BYTES;
        of_loader = strstr(name, "/ld-linux") != NULL || (of_loader && from == before);
        if (strstr(name, "/dev/zero"))
            family = to % (64 * 1024) == 0;
        before = to;
    }
    fclose(maps);
    return counters && family;
}

static void answer(int listener, int fd, int looks)
{
    char byte;

    close(listener);
    while (read(fd, &byte, 1) == 1)
        check(write(fd, &byte, 1) == 1);
    close(fd);
    _exit(looks ? written_pages() : 0);
}

int main(int argc, char **argv)
{
    struct sockaddr_in to;
    int listener = loopback_listener(&to), children = argc > 1 ? atoi(argv[1]) : 0;
    long childs = LONG_MAX, parents = LONG_MAX, written = LONG_MAX;
    pid_t client;

    check(children > 0);
    client = fork();
    check(client >= 0);
    if (client == 0) {
        close(listener);
        ask(&to, children);
        _exit(0);
    }
    for (int i = 0; i < children; i++) {
        long before = faults_so_far(), own;
        int status, fd = accept(listener, NULL, NULL);
        struct rusage used;
        pid_t child;

        check(fd >= 0);
        child = fork();
        check(child >= 0);
        if (child == 0)
            answer(listener, fd, i % 2);
        close(fd);
        check(wait4(child, &status, 0, &used) == child && WIFEXITED(status));
        if (i % 2 && WEXITSTATUS(status) < written)
            written = WEXITSTATUS(status);
        if (i % 2)
            continue;
        own = faults_so_far() - before;
        if (used.ru_minflt < childs)
            childs = used.ru_minflt;
        if (own < parents)
            parents = own;
    }
    check(waitpid(client, NULL, 0) == client);
    printf("{\"child\": %ld, \"parent\": %ld, \"written\": %ld, \"mappings\": %d, \"highest\": %d, \"placed\": %d}\n",
           childs, parents, written, mappings(), highest(), is_placed());
    return 0;
}
