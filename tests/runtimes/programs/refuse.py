"""Runs a command under a filter that it inherits: one system call is refused with EPERM, as containers do.

usage: refuse.py CALL COMMAND...
"""

import ctypes
import os
import struct
import sys

# x86-64's numbers.
CALLS = {
    "memfd_create": 319,
    "eventfd2": 290,
    "pidfd_open": 434,
    "pidfd_getfd": 438,
    "ppoll": 271,
    "epoll_pwait": 281,
    "sched_getaffinity": 204,
    "prlimit64": 302,
    "getsockopt": 55,
    "sendmsg": 46,
    "recvmsg": 47,
}
SOCKET = 41
INET = (2, 10)
LOAD, EQUAL, ANSWER = 0x20, 0x15, 0x06
ALLOW, REFUSE = 0x7FFF0000, 0x00050001
NUMBER_AT, FIRST_ARGUMENT_AT = 0, 16
PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, FILTER = 38, 22, 2


def code(call):
    """The filter's program."""
    if call == "other_sockets":
        # Sockets of other families than the Internet's: no rendezvous, no sock_diag.
        return [
            (LOAD, 0, 0, NUMBER_AT),
            (EQUAL, 0, 4, SOCKET),
            (LOAD, 0, 0, FIRST_ARGUMENT_AT),
            (EQUAL, 2, 0, INET[0]),
            (EQUAL, 1, 0, INET[1]),
            (ANSWER, 0, 0, REFUSE),
            (ANSWER, 0, 0, ALLOW),
        ]
    return [
        (LOAD, 0, 0, NUMBER_AT),
        (EQUAL, 0, 1, CALLS[call]),
        (ANSWER, 0, 0, REFUSE),
        (ANSWER, 0, 0, ALLOW),
    ]


def main():
    """Confines this process, then becomes the command."""
    rules = code(sys.argv[1])
    packed = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *rule) for rule in rules))
    program = ctypes.create_string_buffer(struct.pack("@HP", len(rules), ctypes.addressof(packed)))
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
    assert libc.prctl(PR_SET_SECCOMP, FILTER, program, 0, 0) == 0, ctypes.get_errno()
    os.execvp(sys.argv[2], sys.argv[2:])


main()
