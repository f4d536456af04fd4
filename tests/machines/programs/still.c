/* Preloaded: time stands still from the first `usleep` of a program on. What becomes due by time alone does not come between
 * the calls that are counted. */
#define _GNU_SOURCE
#include <stdatomic.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { CLOCKS = 16 };

static atomic_int stands;
static struct timespec held[CLOCKS];

static int ask(clockid_t clock, struct timespec *now)
{
    return (int)syscall(SYS_clock_gettime, clock, now);
}

int clock_gettime(clockid_t clock, struct timespec *now)
{
    if (clock < 0 || clock >= CLOCKS || !stands)
        return ask(clock, now);
    *now = held[clock];
    return 0;
}

int usleep(useconds_t us)
{
    struct timespec rest = { us / 1000000, us % 1000000 * 1000 };
    if (!stands) {
        for (int clock = 0; clock < CLOCKS; clock++)
            ask(clock, &held[clock]);
        stands = 1;
    }
    return nanosleep(&rest, 0);
}
