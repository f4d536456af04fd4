"""Programs whose payload does not go over SDP to 95 %, with the share that does and the reason.

Each entry is a promise: the test fails if the share falls below the listed one. With share 0 the
results must still be those of plain TCP and the report's sums must hold.
"""

# Scenario: (least share of the payload after the first 64 KiB of each direction, reason).
EXCEPTIONS = {
    "bash": (0, "a shell's redirections hand the connection to other programs: it stays on TCP"),
    "sshd": (0, "sshd executes itself with the connection as its standard input"),
    "xinetd-cat": (0, "the service is executed with the connection as its standard input"),
    "xinetd-static": (0, "a static program and a shell get the connection as standard input"),
    "xinetd-telnet": (0, "telnet wants urgent data in line (SO_OOBINLINE)"),
    "haproxy": (0.6, "a connection per response: the first calls of each stay on TCP"),
    "iperf2": (0.4, "short bulk: the sender fills the socket buffer before the ends have met"),
    "nginx-pages": (0.7, "few large responses: the server fills the socket buffer before they meet"),
    "nginx-reload": (0.5, "few large responses: the server fills the socket buffer before they meet"),
    "postgres": (0.4, "many short sessions, and COPY before the ends have met"),
    "python-passing": (0.1, "passed to another process, then used by two: each change ends a lane"),
}

# Scenarios in which bytes move where the library cannot count them, so that the two ends' sums differ.
UNCOUNTED = {
    "bash": "builtins print to the connection through stdio, which writes inside libc",
    "sshd": "the child in the seccomp sandbox, where the library does nothing any more",
    "xinetd-static": "a static program gets the connection",
}
