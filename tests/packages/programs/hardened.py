"""Starts a command as a service manager would whose unit has these settings.

usage: hardened.py [SETTING[=VALUE] …] -- COMMAND [ARGUMENT …]

The settings have systemd's names; what each does here is what systemd does for it. Runs as root; `User` comes last of what it does.
"""

import ctypes
import errno
import os
import pwd
import subprocess
import sys

LIBC = ctypes.CDLL(None, use_errno=True)
CLONE_NEWNS, CLONE_NEWUSER, CLONE_NEWNET = 0x00020000, 0x10000000, 0x40000000
MS_RDONLY, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 1, 32, 4096, 16384, 1 << 18
PR_SET_NO_NEW_PRIVS, PR_SET_MDWE = 38, 65
ALLOW, KILL, REFUSE = 0x7FFF0000, 0x80000000, 0x00050000
EQUAL, MASKED = 4, 7
PROT_WRITE, PROT_EXEC, SHM_EXEC = 2, 4, 0o100000
# Address families that there may be.
FAMILIES = 48


class Argument(ctypes.Structure):
    """libseccomp's comparison of one argument."""

    _fields_ = [("number", ctypes.c_uint), ("how", ctypes.c_int), ("a", ctypes.c_uint64), ("b", ctypes.c_uint64)]


def checked(result):
    """Raises what libc says."""
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def unshare(flags):
    """New namespaces, whose mounts nobody else sees."""
    checked(LIBC.unshare(flags))
    if flags & CLONE_NEWNS:
        checked(LIBC.mount(None, b"/", None, MS_REC | MS_PRIVATE, None))


class Filter:
    """A seccomp filter."""

    def __init__(self, otherwise):
        self.is_list = otherwise != ALLOW
        self.lib = ctypes.CDLL("libseccomp.so.2")
        self.lib.seccomp_init.restype = ctypes.c_void_p
        self.context = ctypes.c_void_p(self.lib.seccomp_init(ctypes.c_uint(otherwise)))

    def rule(self, action, name, *arguments):
        """One rule; calls that this processor does not have are left out."""
        number = self.lib.seccomp_syscall_resolve_name(name.encode())
        if number < 0:
            return
        array = (Argument * len(arguments))(*arguments)
        done = self.lib.seccomp_rule_add_array(self.context, ctypes.c_uint(action), number, len(arguments), array)
        if done != 0:
            raise OSError(-done, f"rule for {name}")

    def load(self):
        """In force from now on."""
        if self.lib.seccomp_load(self.context) != 0:
            raise OSError("the filter cannot be loaded")


def members(group):
    """The calls of a group of systemd's, and of the groups in it."""
    shown = subprocess.run(["systemd-analyze", "syscall-filter", group], capture_output=True, text=True, check=True)
    names = [line.strip() for line in shown.stdout.splitlines()[1:] if line.strip() and "#" not in line]
    return {call for name in names for call in (members(name) if name.startswith("@") else {name})}


def calls_of(group, otherwise):
    """Only the calls of the group."""
    allowed = Filter(otherwise)
    for name in sorted(members(group)):
        allowed.rule(ALLOW, name)
    return allowed


def families_only(kept):
    """Sockets of these address families only."""
    found = Filter(ALLOW)
    for family in range(FAMILIES):
        if family not in kept:
            found.rule(REFUSE | errno.EAFNOSUPPORT, "socket", Argument(0, EQUAL, family, 0))
    return found


def no_written_code():
    """As systemd did it before the kernel could."""
    found = Filter(ALLOW)
    both = PROT_WRITE | PROT_EXEC
    found.rule(REFUSE | errno.EPERM, "mmap", Argument(2, MASKED, both, both))
    for call in ("mprotect", "pkey_mprotect"):
        found.rule(REFUSE | errno.EPERM, call, Argument(2, MASKED, PROT_EXEC, PROT_EXEC))
    found.rule(REFUSE | errno.EPERM, "shmat", Argument(2, MASKED, SHM_EXEC, SHM_EXEC))
    return found


def proc(options):
    """Another /proc."""
    unshare(CLONE_NEWNS)
    checked(LIBC.mount(b"proc", b"/proc", b"proc", 0, options))


def main(settings, command):
    """Applies them, filters last."""
    filters = []
    user = None
    for setting in settings:
        name, _, value = setting.partition("=")
        if name == "NoNewPrivileges":
            checked(LIBC.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
        elif name == "MemoryDenyWriteExecute":
            if value == "filter":
                filters.append(no_written_code())
            elif LIBC.prctl(PR_SET_MDWE, 1, 0, 0, 0) != 0:
                sys.exit("this kernel cannot")
        elif name == "PrivateNetwork":
            unshare(CLONE_NEWNET)
            subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
        elif name == "ProtectProc":
            proc(b"hidepid=invisible")
        elif name == "ProcSubset":
            proc(b"subset=pid")
        elif name == "ProtectSystem":
            unshare(CLONE_NEWNS)
            checked(LIBC.mount(None, b"/", None, MS_REMOUNT | MS_BIND | MS_RDONLY, None))
        elif name == "PrivateUsers":
            unshare(CLONE_NEWUSER)
            for kind, text in (("setgroups", "deny"), ("uid_map", "0 0 1\n"), ("gid_map", "0 0 1\n")):
                with open(f"/proc/self/{kind}", "w", encoding="ascii") as f:
                    f.write(text)
        elif name == "SystemCallFilter":
            filters.append(calls_of("@system-service", REFUSE | errno.EPERM if value == "EPERM" else KILL))
        elif name == "RestrictAddressFamilies":
            filters.append(families_only({2, 10}))
        elif name == "User":
            user = pwd.getpwnam(value)
        else:
            sys.exit(f"unknown setting: {name}")
    if user:
        os.setgroups([])
        os.setresgid(user.pw_gid, user.pw_gid, user.pw_gid)
        os.setresuid(user.pw_uid, user.pw_uid, user.pw_uid)
    # The longest list last: it would refuse the others.
    for each in sorted(filters, key=lambda each: each.is_list):
        each.load()
    os.execvp(command[0], command)


divide = sys.argv.index("--")
main(sys.argv[1:divide], sys.argv[divide + 1:])
