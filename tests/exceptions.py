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
    "python-passing": (0.15, "passed to another process, then used by two: each change ends a lane"),
}
