"""Runs a command as a user in a user namespace that has names for root and that user only, as a unit with PrivateUsers=true does.

Usage: private_users.py UID COMMAND...
"""

import ctypes
import os
import sys

CLONE_NEWUSER = 0x10000000


def main(uid, *command):
    """The parent has the right to name users in the child's namespace."""
    ready, named = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        assert ctypes.CDLL(None).unshare(CLONE_NEWUSER) == 0
        os.write(ready[1], b"x")
        os.read(named[0], 1)
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
        os.execvp(command[0], command)
    os.read(ready[0], 1)
    for name in ("uid_map", "gid_map"):
        with open(f"/proc/{child}/{name}", "w", encoding="ascii") as names:
            names.write(f"0 0 1\n{uid} {uid} 1\n")
    os.write(named[1], b"x")
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


main(int(sys.argv[1]), *sys.argv[2:])
