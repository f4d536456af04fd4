/* io_uring, by the system calls alone or by liburing: one operation at a time. */
#define _GNU_SOURCE
#include "ways.h"

#include <errno.h>
#include <liburing.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#define ENTRIES 8

static int is_lib;
static struct io_uring lib;

/* The rings of a program that does without liburing. */
static struct {
    int fd;
    unsigned *sq_tail, *sq_mask, *sq_array, *cq_head, *cq_tail, *cq_mask;
    struct io_uring_sqe *sqes;
    struct io_uring_cqe *cqes;
} raw;

static int raw_open(void)
{
    struct io_uring_params params = {0};
    int fd = syscall(SYS_io_uring_setup, ENTRIES, &params);

    if (fd < 0) {
        return 0;
    }
    size_t sq_bytes = params.sq_off.array + params.sq_entries * sizeof(unsigned);
    size_t cq_bytes = params.cq_off.cqes + params.cq_entries * sizeof(struct io_uring_cqe);
    int both = PROT_READ | PROT_WRITE, how = MAP_SHARED | MAP_POPULATE;
    char *sq = mmap(NULL, sq_bytes, both, how, fd, IORING_OFF_SQ_RING);
    char *cq = mmap(NULL, cq_bytes, both, how, fd, IORING_OFF_CQ_RING);

    raw.sqes = mmap(NULL, params.sq_entries * sizeof *raw.sqes, both, how, fd, IORING_OFF_SQES);
    if (sq == MAP_FAILED || cq == MAP_FAILED || raw.sqes == MAP_FAILED) {
        give_up("mmap of the rings");
    }
    raw.fd = fd;
    raw.sq_tail = (unsigned *)(sq + params.sq_off.tail);
    raw.sq_mask = (unsigned *)(sq + params.sq_off.ring_mask);
    raw.sq_array = (unsigned *)(sq + params.sq_off.array);
    raw.cq_head = (unsigned *)(cq + params.cq_off.head);
    raw.cq_tail = (unsigned *)(cq + params.cq_off.tail);
    raw.cq_mask = (unsigned *)(cq + params.cq_off.ring_mask);
    raw.cqes = (struct io_uring_cqe *)(cq + params.cq_off.cqes);
    return 1;
}

int uring_open(int with_liburing)
{
    is_lib = with_liburing;
    return is_lib ? io_uring_queue_init(ENTRIES, &lib, 0) == 0 : raw_open();
}

/* One operation to its end; result and errno of a system call. */
static int run(const struct io_uring_sqe *wanted)
{
    int result;

    if (is_lib) {
        struct io_uring_sqe *entry = io_uring_get_sqe(&lib);
        struct io_uring_cqe *done;

        *entry = *wanted;
        io_uring_submit(&lib);
        while ((result = io_uring_wait_cqe(&lib, &done)) == -EINTR) {
        }
        if (result < 0) {
            errno = -result;
            give_up("io_uring_wait_cqe");
        }
        result = done->res;
        io_uring_cqe_seen(&lib, done);
    } else {
        unsigned tail = *raw.sq_tail, at = tail & *raw.sq_mask, head = *raw.cq_head;
        unsigned to_submit = 1;

        raw.sqes[at] = *wanted;
        raw.sq_array[at] = at;
        __atomic_store_n(raw.sq_tail, tail + 1, __ATOMIC_RELEASE);
        while (__atomic_load_n(raw.cq_tail, __ATOMIC_ACQUIRE) == head) {
            int made = syscall(SYS_io_uring_enter, raw.fd, to_submit, 1, IORING_ENTER_GETEVENTS, NULL, 0);

            if (made < 0 && errno != EINTR) {
                give_up("io_uring_enter");
            }
            if (made > 0) {
                to_submit = 0;
            }
        }
        result = raw.cqes[head & *raw.cq_mask].res;
        __atomic_store_n(raw.cq_head, head + 1, __ATOMIC_RELEASE);
    }
    if (result < 0) {
        errno = -result;
        return -1;
    }
    return result;
}

static ssize_t ring_send(int fd, const void *from, size_t n, int flags)
{
    struct io_uring_sqe entry = {.opcode = IORING_OP_SEND, .fd = fd};

    entry.addr = (unsigned long)from, entry.len = n, entry.msg_flags = flags;
    return run(&entry);
}

static ssize_t ring_recv(int fd, void *to, size_t n, int flags)
{
    struct io_uring_sqe entry = {.opcode = IORING_OP_RECV, .fd = fd};

    entry.addr = (unsigned long)to, entry.len = n, entry.msg_flags = flags;
    return run(&entry);
}

/* The conversation waits for one descriptor. */
static int ring_poll(struct pollfd *fds, nfds_t n, int timeout_ms)
{
    struct io_uring_sqe entry = {.opcode = IORING_OP_POLL_ADD, .fd = fds->fd};

    if (n != 1 || timeout_ms >= 0) {
        errno = EINVAL;
        give_up("ring_poll");
    }
    entry.poll32_events = fds->events;
    int events = run(&entry);

    fds->revents = events < 0 ? 0 : events;
    return events < 0 ? -1 : 1;
}

static int ring_close(int fd)
{
    struct io_uring_sqe entry = {.opcode = IORING_OP_CLOSE, .fd = fd};

    return run(&entry);
}

static int ring_shutdown(int fd, int how)
{
    struct io_uring_sqe entry = {.opcode = IORING_OP_SHUTDOWN, .fd = fd, .len = how};

    return run(&entry);
}

int uring_accept(int listener)
{
    struct io_uring_sqe entry = {.opcode = IORING_OP_ACCEPT, .fd = listener};

    return run(&entry);
}

int uring_connect(int fd, const void *address, unsigned length)
{
    struct io_uring_sqe entry = {.opcode = IORING_OP_CONNECT, .fd = fd, .off = length};

    entry.addr = (unsigned long)address;
    return run(&entry);
}

const struct way uring_way = {"uring", ring_send, ring_recv, ring_poll, ring_shutdown, dup, ring_close};
