"""Two processes that meet again and again, and what that makes them ask the kernel.

Both ends have the library. One of them may be confined, so that it could not attach to the other with a debugger: then the
other one does not take its word (docs/spec/shm.md, section 6.1) but asks sock_diag, by a socket that stays open.
"""

import ctypes
import functools
import json
import os
import re
import socket
import subprocess
import sys

import ends
from ends import main

TABLE = {}
scenario = functools.partial(ends.scenario, TABLE)

CONNECTIONS = 4
SET_NO_NEW_PRIVS = 38
NETLINK_SOCK_DIAG = "4"


def confine():
    """Gives up what no later call can get back."""
    assert ctypes.CDLL(None).prctl(SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0


def has_asked():
    """Whether this process has a socket open by which sock_diag is asked."""
    with open("/proc/self/net/netlink", encoding="utf-8") as table:
        rows = [line.split() for line in table][1:]
    askers = {row[-1] for row in rows if row[1] == NETLINK_SOCK_DIAG}
    held = set()
    for number in os.listdir("/proc/self/fd"):
        try:
            found = re.fullmatch(r"socket:\[(\d+)\]", os.readlink(f"/proc/self/fd/{number}"))
        except FileNotFoundError:
            continue
        held |= {found[1]} if found else set()
    return bool(askers & held)


def outcome(attached):
    return {"attached": attached, "asked": has_asked()}


@scenario
def client(port, is_confined):
    """The end that connects."""
    if is_confined == "client":
        confine()
    attached = []
    for _ in range(CONNECTIONS):
        sock = socket.create_connection(("127.0.0.1", int(port)))
        ends.warm_up(sock, True)
        attached.append(ends.is_attached())
        sock.shutdown(socket.SHUT_WR)
        assert ends.exactly(sock, 1) == b""
        sock.close()
    return outcome(attached)


@scenario
def server(is_confined):
    """The end that accepts, and starts the other one."""
    if is_confined == "server":
        confine()
    listener = ends.listener()
    words = [sys.executable, __file__, "client", str(listener.getsockname()[1]), is_confined]
    attached = []
    with subprocess.Popen(words, stdout=subprocess.PIPE) as child:
        for _ in range(CONNECTIONS):
            sock, _ = listener.accept()
            ends.warm_up(sock, False)
            attached.append(ends.is_attached())
            assert ends.exactly(sock, 1) == b""
            sock.close()
        said, _ = child.communicate(timeout=50)
    assert child.returncode == 0, child.returncode
    return {"server": outcome(attached), "client": json.loads(said)}


if __name__ == "__main__":
    main(TABLE)
