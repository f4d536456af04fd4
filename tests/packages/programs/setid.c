/* A set-id program that has a connection with itself; what it says of itself is one line.
 *
 * usage: setid
 *
 * Prints: effective user, whether the kernel calls it secure, whether the library is in it, bytes that came through. */

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/socket.h>
#include <unistd.h>

enum { ROUNDS = 200, LENGTH = 1000 };

static int is_mapped(void)
{
    char line[4096];
    int found = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    while (maps && fgets(line, sizeof line, maps))
        found |= strstr(line, "libsdp.so") != NULL;
    if (maps)
        fclose(maps);
    return found;
}

static size_t talk(void)
{
    struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t len = sizeof at;
    char out[LENGTH], in[LENGTH];
    size_t came = 0;
    int listener = socket(AF_INET, SOCK_STREAM, 0), client = socket(AF_INET, SOCK_STREAM, 0);
    if (bind(listener, (void *)&at, sizeof at) || listen(listener, 1) || getsockname(listener, (void *)&at, &len)
        || connect(client, (void *)&at, sizeof at))
        return 0;
    int server = accept(listener, NULL, NULL);
    for (int i = 0; i < ROUNDS; i++) {
        memset(out, i, sizeof out);
        if (write(client, out, sizeof out) != LENGTH)
            return 0;
        for (size_t got = 0; got < LENGTH;) {
            ssize_t n = read(server, in + got, LENGTH - got);
            if (n <= 0)
                return 0;
            got += (size_t)n;
        }
        if (memcmp(in, out, LENGTH))
            return 0;
        came += LENGTH;
    }
    return came;
}

int main(void)
{
    printf("uid %d secure %lu library %d bytes %zu\n", (int)geteuid(), getauxval(AT_SECURE), is_mapped(), talk());
    return 0;
}
