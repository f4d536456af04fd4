/* sdp.h: constants for programs that ask for SDP sockets by themselves.
 *
 *     #include <sdp.h>
 *
 *     int fd = socket(AF_INET_SDP, SOCK_STREAM, 0);
 *
 * Everything else of a TCP program stays as it is: addresses are struct sockaddr_in and struct
 * sockaddr_in6 with sin_family AF_INET and AF_INET6 (bind and connect also take AF_INET_SDP and
 * AF_INET6_SDP there), and the calls are the same.
 *
 * The program runs with the library (`sdp run`, LD_PRELOAD or /etc/ld.so.preload). Without it
 * socket() fails with EAFNOSUPPORT. With it, no rule keeps such a socket from SDP, and a connect
 * to a listener that cannot have SDP fails: ECONNREFUSED, or ENETUNREACH where no SDP leads.
 *
 * A constant that is defined already keeps its value, so a program may have its own line, such as
 * the older `#define AF_INET_SDP 26`. */
#ifndef SDP_H
#define SDP_H

#include <sys/socket.h>

/* Families for socket(): SDP over IPv4 and over IPv6. */
#ifndef AF_INET_SDP
#define AF_INET_SDP 27
#endif
#ifndef AF_INET6_SDP
#define AF_INET6_SDP 28
#endif
#ifndef PF_INET_SDP
#define PF_INET_SDP AF_INET_SDP
#endif
#ifndef PF_INET6_SDP
#define PF_INET6_SDP AF_INET6_SDP
#endif

/* Level of the options below; IPPROTO_TCP is as good. */
#ifndef SOL_SDP
#define SOL_SDP 1025
#endif

/* int, bytes: a transfer of at least this size may be made without a copy. 0 never, else 4096 to
 * 1048576; -1 is told where nothing was set. Kept and told; it has no effect yet. */
#ifndef SDP_ZCOPY_THRESH
#define SDP_ZCOPY_THRESH 80
#endif

/* int, only asked for: error number of the last bind(), negative, or 0. */
#ifndef SDP_LAST_BIND_ERR
#define SDP_LAST_BIND_ERR 81
#endif

#endif
