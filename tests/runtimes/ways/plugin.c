/* A plug-in that moves bytes by libc's names: which libc's, the way of loading it decides. */
#include <errno.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

ssize_t plugin_send(int fd, const void *from, size_t n, int flags) { return send(fd, from, n, flags); }
ssize_t plugin_recv(int fd, void *to, size_t n, int flags) { return recv(fd, to, n, flags); }
int plugin_poll(struct pollfd *fds, nfds_t n, int timeout_ms) { return poll(fds, n, timeout_ms); }
int plugin_shutdown(int fd, int how) { return shutdown(fd, how); }
int plugin_dup(int fd) { return dup(fd); }
int plugin_close(int fd) { return close(fd); }
int plugin_errno(void) { return errno; }
