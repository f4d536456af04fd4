/* What children of vfork do with a connection before they execute something, on the memory of their parent.
 *
 *   vforked reused    the child closes the number, gets it again for a file, makes that its standard input
 *   vforked numbered  the child puts the connection onto another number for its image, which has no library
 *   vforked image N   that image: sends back what it reads
 */
#include "base.h"

#include <fcntl.h>

#define SIZE 1000
#define TRIPS 200
/* Unread when the image gets the connection. */
#define LEFT 20000
#define NUMBER 30

static char room[LEFT];

static void receive(int fd, size_t size)
{
    check(recv(fd, room, size, MSG_WAITALL) == (ssize_t)size);
}

static void transmit(int fd, size_t size)
{
    for (size_t at = 0; at < size;) {
        ssize_t n = send(fd, room + at, size - at, MSG_NOSIGNAL);

        check(n > 0);
        at += n;
    }
}

static void fill(int with)
{
    for (size_t i = 0; i < sizeof room; i++) {
        room[i] = (char)(with + i % 251);
    }
}

static int is_filled(int with, size_t size)
{
    for (size_t i = 0; i < size; i++) {
        if (room[i] != (char)(with + i % 251)) {
            return 0;
        }
    }
    return 1;
}

/* The other end: begins each round trip, and leaves something unread at last if the image is to have it. */
static void be_peer(const struct sockaddr_in *address, int is_for_image)
{
    int fd = socket(AF_INET, SOCK_STREAM, 0);

    check(connect(fd, (const void *)address, sizeof *address) == 0);
    for (int i = 0; i < TRIPS; i++) {
        fill(i);
        transmit(fd, SIZE);
        receive(fd, SIZE);
        check(is_filled(i, SIZE));
    }
    if (is_for_image) {
        fill(7);
        transmit(fd, LEFT);
        memset(room, 0, sizeof room);
        receive(fd, LEFT);
        check(is_filled(7, LEFT));
    }
    check(recv(fd, room, 1, 0) == 0);
    exit(0);
}

static void reap(pid_t pid)
{
    int status;

    check(waitpid(pid, &status, 0) == pid && status == 0);
}

static void reuse(int fd)
{
    pid_t pid = vfork();

    if (pid == 0) {
        close(fd);
        if (open("/etc/passwd", O_RDONLY) != fd || dup2(fd, 0) != 0) {
            _exit(9);
        }
        execl("/bin/true", "true", NULL);
        _exit(8);
    }
    reap(pid);
}

static void renumber(const char *self, int fd)
{
    char number[] = {'0' + NUMBER / 10, '0' + NUMBER % 10, 0};
    char *nothing[] = {NULL};
    pid_t pid = vfork();

    if (pid == 0) {
        if (dup2(fd, NUMBER) != NUMBER) {
            _exit(9);
        }
        execle(self, self, "image", number, NULL, nothing);
        _exit(8);
    }
    reap(pid);
}

static void be_image(int fd)
{
    receive(fd, LEFT);
    transmit(fd, LEFT);
    exit(0);
}

int main(int argc, char **argv)
{
    struct sockaddr_in address;
    int hear, fd, is_for_image;
    pid_t child;

    check(argc > 1);
    if (strcmp(argv[1], "image") == 0) {
        be_image(atoi(argv[2]));
    }
    is_for_image = strcmp(argv[1], "numbered") == 0;
    hear = loopback_listener(&address);
    child = fork();
    check(child >= 0);
    if (child == 0) {
        close(hear);
        be_peer(&address, is_for_image);
    }
    fd = accept(hear, NULL, NULL);
    for (int i = 0; i < TRIPS; i++) {
        receive(fd, SIZE);
        if (!is_for_image && i % 50 == 49) {
            reuse(fd);
        }
        transmit(fd, SIZE);
    }
    if (is_for_image) {
        nap_us(200000); /* until the rest lies in the ring */
        renumber("/proc/self/exe", fd);
    }
    close(fd);
    reap(child);
    puts("{\"fine\": true}");
    return 0;
}
