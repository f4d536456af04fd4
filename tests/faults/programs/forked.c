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
#include <fcntl.h>
#include <limits.h>
#include <link.h>
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

/* Where the library has what it writes, data and zeros: `range` gets its first and last address. */
static int find_data(struct dl_phdr_info *object, size_t size, void *range)
{
    (void)size;
    if (strstr(object->dlpi_name, "libsdp.so") == NULL)
        return 0;
    for (int i = 0; i < object->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &object->dlpi_phdr[i];

        if (part->p_type == PT_LOAD && part->p_flags & PF_W) {
            ((unsigned long *)range)[0] = object->dlpi_addr + part->p_vaddr;
            ((unsigned long *)range)[1] = object->dlpi_addr + part->p_vaddr + part->p_memsz - 1;
        }
    }
    return 1;
}

/* Pages of these that only this process has: it has written them. */
static int written_pages(void)
{
    const unsigned long present = 1ul << 63, of_file = 1ul << 61, alone = 1ul << 56;
    unsigned long range[2] = {1, 0}, page, size = sysconf(_SC_PAGESIZE);
    int maps = open("/proc/self/pagemap", O_RDONLY), found = 0;

    check(maps >= 0);
    dl_iterate_phdr(find_data, range);
    for (unsigned long at = range[0] / size; at <= range[1] / size && range[1] != 0; at++) {
        check(pread(maps, &page, sizeof page, at * sizeof page) == sizeof page);
        found += (page & (present | of_file | alone)) == (present | alone);
    }
    close(maps);
    return found;
}

/* Mappings; only those of files whose path has `part` in it. */
static int mappings(const char *part)
{
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[512];
    int found = 0;

    check(maps != NULL);
    while (fgets(line, sizeof line, maps))
        found += strstr(line, part) != NULL;
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
    printf("{\"child\": %ld, \"parent\": %ld, \"written\": %ld, \"mappings\": %d, \"all\": %d, \"highest\": %d, \"placed\": %d}\n",
           childs, parents, written, mappings("libsdp.so"), mappings(""), highest(), is_placed());
    return 0;
}
