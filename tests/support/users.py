"""Of which users the processes of a scenario are, as in production: a server is its package's, its clients are somebody else's.

Who plays is said here, not in the tests: `Users.of` chooses for each run, and a stage asks it for each program.
"""

import os
import pwd
import random
import shutil

# The users that Debian's packages make for their servers, by the name of the program.
SERVICES = {
    "redis-server": "redis",
    "postgres": "postgres",
    "memcached": "memcache",
    "haproxy": "haproxy",
    "iperf3": "iperf3",
}
# Of servers that have no user of their own, web servers among them.
SERVANT = "www-data"
# Servers that refuse to be root's, or whose workers do, and stay their package's whoever else plays.
NEVER_ROOT = {"postgres": "postgres", "apache2": SERVANT}
# Whoever runs the clients: an ordinary user that every Debian has, and no server.
CLIENT = "games"
# Ordinary users of every Debian, for what draws its own.
ORDINARY = ("daemon", "games", "news", "backup", "www-data", "nobody")
ROOT = "root"
# How the ends of a scenario may be shared out.
TWO, ROOT_AND_USER, ONE = "two users", "root and a user", "one user"


def may_choose():
    """Whether processes of other users can be made here."""
    return os.geteuid() == 0


def exists(user):
    """True if there is such a user."""
    try:
        pwd.getpwnam(user)
    except KeyError:
        return False
    return True


def words(user):
    """Words in front of a command that make it run as the user, with the user's groups; none for nobody in particular."""
    if not user or not may_choose() or user == ROOT:
        return []
    return ["setpriv", f"--reuid={user}", f"--regid={pwd.getpwnam(user).pw_gid}", "--init-groups"]


def give(path, user):
    """Makes a file or a folder the user's, if it may be; the path."""
    if user and may_choose():
        entry = pwd.getpwnam(user)
        os.chown(path, entry.pw_uid, entry.pw_gid)
    return path


def reachable(path):
    """Opens a folder of the test's own, and those above it in the temporary directory, to every user; the path."""
    for folder in (path, *path.parents):
        if folder.parent == folder or folder.stat().st_mode & 0o005 == 0o005:
            break
        folder.chmod(folder.stat().st_mode | 0o055)
    return path


def drawn(seed):
    """A pair of users, by a seed: two ordinary ones, root and one, or one for both ends; nobody in particular where none can be
    chosen."""
    if not may_choose():
        return None, None
    rng = random.Random(f"users {seed}")
    kind = rng.choice((TWO, TWO, ROOT_AND_USER, ONE))
    first, second = rng.sample(ORDINARY, 2)
    if kind == ROOT_AND_USER:
        return rng.choice(((ROOT, first), (first, ROOT)))
    return (first, second) if kind == TWO else rng.choice(((ROOT, ROOT), (first, first)))


class Users:
    """Who plays in one run of a scenario."""

    def __init__(self, kind):
        self.kind = kind if may_choose() else None

    @classmethod
    def of(cls, name, seed, is_flipped, is_one):
        """Two users. With flips, which name and seed shuffle anyway, a draw of all kinds; one user where the test says so."""
        if is_one:
            return cls(ONE)
        if is_flipped:
            return cls(random.Random(f"{name} {seed}").choice((TWO, ROOT_AND_USER, ONE)))
        return cls(TWO)

    def servant(self, program):
        """The user of a server; None for nobody in particular."""
        if self.kind is None:
            return None
        if self.kind == TWO:
            own = SERVICES.get(program)
            return own if own and exists(own) else SERVANT
        return NEVER_ROOT.get(program, ROOT)

    @property
    def client(self):
        """The user of clients; None for nobody in particular."""
        if self.kind is None:
            return None
        return ROOT if self.kind == ONE else CLIENT

    def client_of(self, program):
        """The user of a server's clients, who make up for a server that is never root's: with one user they are of the server's, with
        root and a user they are root's. None for nobody in particular."""
        if self.kind in (ONE, ROOT_AND_USER) and program in NEVER_ROOT:
            return NEVER_ROOT[program] if self.kind == ONE else ROOT
        return self.client


def shareable(folder, into):
    """A copy of a folder of the tests where every user can read it: the sources may lie where only their owner can."""
    return shutil.copytree(folder, into, ignore=shutil.ignore_patterns("__pycache__"))
