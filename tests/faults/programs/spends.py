"""What a lane spends of what a program has few of, and what is left for the program."""

import ctypes
import functools
import os
import resource
import select
import signal
import socket
import struct
import subprocess
import threading
import time

import ends
from ends import drain, echo, exactly, main, outcome, pair

TABLE = {}
scenario = functools.partial(ends.scenario, TABLE)
LIBC = ctypes.CDLL(None, use_errno=True)


class Entry(ctypes.Structure):
    """`struct pollfd`."""

    _fields_ = [("fd", ctypes.c_int), ("events", ctypes.c_short), ("revents", ctypes.c_short)]


def poll(entries, n, limit_ms):
    """The first `n` entries by `poll`: the result, or the error's word, and what was found where."""
    found = LIBC.poll(entries, ctypes.c_ulong(n), limit_ms)
    if found < 0:
        return ends.name(OSError(ctypes.get_errno(), ""))
    return [found] + [(i, entries[i].revents) for i in range(n) if entries[i].revents]


def limit_descriptors(n):
    """At most so many, of those to come."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (n, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))


@scenario
def poll_to_the_limit(n, used):
    """`poll` of as many entries as the limit allows, of one more, and of one less. The entries beside the connection's are
    unused, or all of them are the connection's."""
    n = int(n)
    sock, child = pair(echo)
    entries = (Entry * (n + 1))(*[Entry(-1 if used == "one" else sock.fileno(), select.POLLIN, 0)] * (n + 1))
    entries[n // 2].fd = sock.fileno()
    limit_descriptors(n)
    seen = {"nothing": poll(entries, n, 50)}
    sock.sendall(b"x")
    # One for the wait, one for the look at what is there.
    seen["a byte"] = [poll(entries, n, 5000), poll(entries, n, 0)]
    seen["less"], seen["more"] = poll(entries, n - 1, 5000), poll(entries, n + 1, 0)
    seen["read"] = sock.recv(10).decode()
    entries[n // 2].events = select.POLLOUT
    seen["room"] = poll(entries, n, 5000)
    limit_descriptors(100)
    sock.shutdown(socket.SHUT_WR)
    return {**seen, "end": drain(sock, b""), "child": ends.reap(child)}


@scenario
def waits_below_the_limit(n):
    """A process whose limit of descriptors is lower than the numbers that it has: calls that wait."""
    sock, child = pair(echo)
    high, other = pair(echo)
    limit_descriptors(int(n))
    seen = {}
    for way in ("recv", "select", "both"):
        seen[way] = []
        for _ in range(3):
            sock.sendall(b"to and fro")
            if way != "recv":
                seen[way].append([len(found) for found in select.select([sock, high], [], [], 10)])
            if way == "both":
                seen[way].append([len(found) for found in select.select([sock, high], [sock], [high], 10)])
            seen[way].append(exactly(sock, 10).decode())
    seen["nobody"] = [len(found) for found in select.select([sock, high], [], [], 0.05)]
    text = ends.stream(5, 400_000)
    thread = ends.threading.Thread(target=sock.sendall, args=(text,)) if int(n) else None
    if thread:
        thread.start()
        seen["bulk"] = exactly(sock, len(text)) == text
        thread.join()
    sock.shutdown(socket.SHUT_WR)
    high.shutdown(socket.SHUT_WR)
    seen["end"] = [drain(one, b"") for one in (sock, high)]
    limit_descriptors(100)
    return {**seen, "children": [ends.reap(child), ends.reap(other)]}


@scenario
def dumps(where, count):
    """A server with connections crashes after it has wiped what it sent."""
    secret = bytearray(b"secret-of-a-user" * 4096)
    found, children = [], []

    def sink(sock):
        while sock.recv(1 << 20):
            pass

    for _ in range(int(count)):
        sock, child = pair(sink)
        for _ in range(20):
            sock.sendall(secret)
        found.append(sock)
        children.append(child)
    has_lanes = ends.is_attached()
    secret[:] = bytes(len(secret))
    os.chdir(where)
    for child in children:
        os.kill(child, signal.SIGKILL)
    hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
    resource.setrlimit(resource.RLIMIT_CORE, (hard, hard))
    print(f'{{"lanes": {int(has_lanes)}}}', flush=True)
    os.abort()


def served():
    """A process that echoes on all connections that come, until the last one has ended; (its address, its id)."""
    lst = ends.listener()
    child = os.fork()
    if child:
        address = lst.getsockname()
        lst.close()
        return address, child
    signal.alarm(60)
    poll, here = select.epoll(), {}
    poll.register(lst, select.EPOLLIN)
    while True:
        for fd, _ in poll.poll():
            if fd == lst.fileno():
                sock = lst.accept()[0]
                here[sock.fileno()] = sock
                poll.register(sock, select.EPOLLIN)
            elif data := here[fd].recv(65536):
                here[fd].sendall(data)
            else:
                here.pop(fd).close()
                if not here:
                    os._exit(0)


def connected(address, count):
    """So many connections to a process."""
    return [socket.create_connection(address) for _ in range(int(count))]


def talk(socks, rounds=30):
    """Small messages to and fro on each; how many were right."""
    good = 0
    for sock in socks:
        right = True
        for i in range(rounds):
            message = bytes([i % 251]) * 64
            sock.sendall(message)
            right = right and exactly(sock, 64) == message
        good += right
    return good


def end(socks, children):
    """Ends them all."""
    for sock in socks:
        sock.close()
    return [ends.reap(child) for child in children]


@scenario
def last_mappings(count, left):
    """Connections are made when few mappings are left; the program wants some of them afterwards."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096), hard))
    address, child = served()
    first = connected(address, 1)
    talk(first)
    with open("/proc/sys/vm/max_map_count", encoding="utf-8") as file:
        most = int(file.read())
    with open("/proc/self/maps", encoding="utf-8") as maps:
        take = (most - len(maps.readlines()) - int(left)) // 2
    LIBC.mmap.restype = ctypes.c_void_p
    LIBC.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
    LIBC.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    # Read only, private, anonymous, not reserved.
    at = LIBC.mmap(None, take * 8192 + 4096, 1, 0x4022, -1, 0)
    assert all(LIBC.mprotect(at + i * 8192, 4096, 0) == 0 for i in range(take))
    socks = connected(address, count)
    seen = {"talk": talk(socks)}
    # Half of what was left is the program's in any case.
    seen["maps"] = sum(LIBC.mmap(None, 4096, 3, 0x21, -1, 0) != 2**64 - 1 for _ in range(int(left) // 4))
    threads = [ends.threading.Thread(target=lambda: None) for _ in range(10)]
    for thread in threads:
        thread.start()
        thread.join()
    return {**seen, "child": end(first + socks, [child])}


@scenario
def little_space(left):
    """Connections are made when little address space is left; the program wants some of it afterwards."""
    address, child = served()
    socks = connected(address, 40)
    with open("/proc/self/statm", encoding="utf-8") as statm:
        used = int(statm.read().split()[0]) * resource.getpagesize()
    limit = used + (int(left) << 20)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    seen = {"talk": talk(socks)}
    seen["half"] = len(bytearray(int(left) << 19))
    return {**seen, "child": end(socks, [child])}


@scenario
def little_group_memory(group, count):
    """Connections whose rings are filled in a memory control group with a low limit."""
    with open(os.path.join(group, "cgroup.procs"), "w", encoding="utf-8") as procs:
        procs.write(str(os.getpid()))
    address, child = served()
    socks = connected(address, count)
    good = talk(socks)
    for sock in socks:
        sock.setblocking(False)
        ends.fill(sock)
    return {"good": good, "alive": os.waitpid(child, os.WNOHANG)[0] == 0}


@scenario
def forgotten():
    """Connections that are never idle, where what tracks connections forgets those without packets for two seconds, and drops
    what comes later: they end, leave their lanes, or their peers are killed."""
    pairs = [pair(echo) for _ in range(3)]
    (ends_it, one), (leaves, two), (killed, three) = pairs
    until = time.monotonic() + 4
    good = True
    while good and time.monotonic() < until:
        good = talk([sock for sock, _ in pairs], 3) == 3
        time.sleep(0.02)
    seen = {"talk": good, "lanes": ends.is_attached()}
    seen["options"] = [ends_it.getsockopt(*option) for option in PROBES]
    for sock, _ in pairs:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 5, 0))
    for size in (2, 1):
        leaves.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, size)
    seen["left"] = talk([leaves])
    os.kill(three, signal.SIGKILL)
    seen["killed"] = outcome(killed.recv, 1) in (b"", "ECONNRESET")
    for sock in (ends_it, leaves):
        sock.shutdown(socket.SHUT_WR)
    seen["end"] = [outcome(sock.recv, 1) == b"" for sock in (ends_it, leaves)]
    return {**seen, "children": [ends.reap(child) for child in (one, two)]}


DROPPED = "table inet s { chain o { type filter hook output priority 0; tcp flags & (fin|rst) != 0 drop; }; }"


def wait_for(sock, how):
    """A wait for the end of the stream, which no packet tells; and how often what it waits for holds then."""
    if how == "recv":
        return [outcome(sock.recv, 1) == b""] * 2
    if how == "poll":
        polled = select.poll()
        polled.register(sock, select.POLLIN)
        return [bool(polled.poll(1000 * ends.PATIENCE_S)), bool(polled.poll(0))]
    if how == "select":
        return [bool(select.select([sock], [], [], ends.PATIENCE_S)[0]), bool(select.select([sock], [], [], 0)[0])]
    held = select.epoll()
    held.register(sock, select.EPOLLIN | (select.EPOLLET if how == "edge" else 0))
    return [bool(held.poll(ends.PATIENCE_S)), bool(held.poll(0))]


@scenario
def silent_end(*ways):
    """The network drops the FIN of a peer that closes its socket or shuts it down while this end sleeps, or leaves its lanes
    behind that before this end looks: what the waits say, what they say after that, and after the end was read."""
    seen = {}
    for way in ways:
        for how in ("recv", "poll", "select", "level", "edge"):
            hear, tell = os.pipe()
            done, do = os.pipe()

            def body(sock, hear=hear, tell=tell, do=do, way=way):
                os.close(tell)
                os.read(hear, 1)
                if way == "close":
                    sock.close()
                else:
                    sock.shutdown(socket.SHUT_WR)
                if way == "leave":  # its lanes, for good
                    sock.setblocking(False)
                    outcome(os.splice, sock.fileno(), os.pipe()[1], 1)
                os.write(do, b"d")
                os.read(hear, 1)

            sock, child = pair(body)
            os.close(hear)
            os.close(do)
            if not seen:
                subprocess.run(["nft", "-f", "-"], input=DROPPED.encode(), check=True)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", int(ends.PATIENCE_S), 0))
            main_thread = threading.get_native_id()

            def say(tell=tell, thread=main_thread):
                ends.until_asleep(os.getpid(), thread)
                os.write(tell, b"x")

            sayer = threading.Thread(target=say)
            if way == "leave":
                os.write(tell, b"x")
                os.read(done, 1)
            else:
                sayer.start()
            told = wait_for(sock, how)
            if way != "leave":
                sayer.join()
            got = [outcome(sock.recv, 1) == b"" for _ in range(2)]
            still = select.select([sock], [], [], 0)[0] == [sock]
            seen[f"{way} {how}"] = [*told, *got, still]
            os.close(tell)
            os.close(done)
            seen[f"{way} {how} child"] = ends.reap(child)
    return {**seen, "lanes": ends.is_attached()}


PROBES = [(socket.SOL_SOCKET, socket.SO_KEEPALIVE)] + [
    (socket.IPPROTO_TCP, n) for n in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
]


def is_probed(sock):
    """Whether the kernel's clock of keepalive probes runs for the socket, which tells without asking for its options."""
    port = f":{sock.getsockname()[1]:04X}"
    with open("/proc/self/net/tcp", encoding="ascii") as table:
        lines = [line.split() for line in table]
    return any(line[1].endswith(port) and line[5].startswith("02:") for line in lines)


@scenario
def own_probes(who):
    """The program sets its own probes, where the library has asked for some: in this process, or in one that has inherited
    the socket. Others that use the connection on leave them as they are."""
    sock, child = pair(echo)
    good, until = True, time.monotonic() + (60 if ends.is_attached() else 0)
    while good and not is_probed(sock) and time.monotonic() < until:
        good = talk([sock], 3) == 1
        time.sleep(0.02)
    assert is_probed(sock) == ends.is_attached()
    heir = os.fork() if who == "heir" else 0
    if heir == 0:
        for option, value in zip(PROBES, (1, 77, 11, 3)):
            sock.setsockopt(*option, value)
        if who == "heir":
            os._exit(0)
    seen = {"heir": ends.reap(heir) if heir else 0, "before": good}
    for _ in range(2):
        time.sleep(1.1)
        good = good and talk([sock], 3) == 1
    seen.update(talk=good, options=[sock.getsockopt(*option) for option in PROBES])
    sock.shutdown(socket.SHUT_WR)
    return {**seen, "end": drain(sock, b""), "child": ends.reap(child)}


if __name__ == "__main__":
    main(TABLE)
