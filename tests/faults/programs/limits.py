"""Programs at their limits: descriptors, memory, rules, users, and what is left behind."""

import functools
import os
import resource
import signal
import socket
import struct
import sys
import threading
import time

import ends
from ends import drain, echo, exactly, main, pair

# Clients that a server with few descriptors serves.
SERVED = 5
TABLE = {}
scenario = functools.partial(ends.scenario, TABLE)


def bulk(sock):
    """A bulk echo round trip."""
    return ends.bulk(sock, 300_000)


def finish(sock, child):
    """Ends a pair; how the peer ended."""
    sock.shutdown(socket.SHUT_WR)
    fine = drain(sock, b"")[:2] == (0, "EOF")
    sock.close()
    return fine and ends.reap(child) == 0


@scenario
def one_echo():
    sock, child = pair(echo)
    return {"fine": bulk(sock), "end": finish(sock, child)}


@scenario
def lowered_limit(whose):
    """The limit of descriptors is lowered when the connections are on their lanes: to one that allows hardly any more, or
    that is below their numbers."""
    low = 20
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]

    def lower():
        resource.setrlimit(resource.RLIMIT_NOFILE, (low, hard))

    def peer(sock):
        if whose != "ours":
            lower()
        echo(sock)

    spare = [os.open("/dev/null", os.O_RDONLY) for _ in range(low)]
    pairs = [pair(peer) for _ in range(3)]
    above = [sock.fileno() >= low for sock, _ in pairs]
    if whose != "theirs":
        lower()
    try:
        os.close(os.dup(0))
        more = True
    except OSError as error:
        more = ends.name(error)
    fine = [bulk(sock) for _ in range(5) for sock, _ in pairs]
    # Numbers that are free again serve a new connection.
    for fd in spare:
        os.close(fd)
    last = pair(peer)
    fine.append(bulk(last[0]))
    return {"above": above, "more": more, "fine": fine, "ends": [finish(*each) for each in [*pairs, last]]}


@scenario
def few_descriptors(limit):
    """A server with few descriptors accepts until there are none, serves, closes, and again."""
    rounds = []
    go_on, told = os.pipe()
    port_from, port_to = os.pipe()
    limit = int(limit)
    child = os.fork()
    if child == 0:
        signal.alarm(50)
        os.close(told), os.close(port_to)
        port = struct.unpack("!H", os.read(port_from, 2))[0]
        for _ in range(3):
            os.read(go_on, 1)
            socks = [socket.create_connection(("127.0.0.1", port)) for _ in range(limit + 8)]
            done = []
            for i, sock in enumerate(socks):
                sock.settimeout(10)
                os.read(go_on, 1) if i == 0 else None
                try:
                    for n in range(40):
                        sock.sendall(b"m" * 100)
                        if len(exactly(sock, 100)) != 100:
                            break
                    else:
                        done.append(i)
                except OSError:
                    break
                if len(done) == SERVED:
                    break
            for sock in socks:
                sock.close()
        os._exit(0)
    os.close(go_on), os.close(port_from)
    lst = socket.socket()
    lst.bind(("127.0.0.1", 0))
    lst.listen(200)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    os.write(port_to, struct.pack("!H", lst.getsockname()[1]))
    for _ in range(3):
        os.write(told, b"n")
        socks, word = [], None
        while word is None:
            try:
                socks.append(lst.accept()[0])
            except OSError as error:
                word = ends.name(error)
        os.write(told, b"g")
        served = 0
        for sock in socks[: SERVED]:
            for _ in range(40):
                sock.sendall(exactly(sock, 100))
            served += 1
        for sock in socks:
            sock.close()
        # What was never accepted is accepted and closed now, so that the next round starts clean.
        lst.setblocking(False)
        time.sleep(0.2)
        while True:
            try:
                lst.accept()[0].close()
            except BlockingIOError:
                break
        lst.setblocking(True)
        rounds.append([len(socks), word, served])
    return {"rounds": rounds, "child": ends.reap(child)}


@scenario
def client_with_few_descriptors(limit):
    """A client opens connections until it has no descriptors, uses all, and closes them."""
    lst = ends.listener()
    child = os.fork()
    if child == 0:
        signal.alarm(50)
        threads = []
        while True:
            sock, _ = lst.accept()
            if sock.recv(1) == b"q":
                os._exit(0)
            thread = threading.Thread(target=echo, args=(sock,), daemon=True)
            thread.start()
            threads.append(thread)
    address = lst.getsockname()
    lst.close()
    resource.setrlimit(resource.RLIMIT_NOFILE, (int(limit), int(limit)))
    rounds = []
    for _ in range(3):
        socks, word = [], None
        while word is None:
            try:
                socks.append(socket.create_connection(address))
                socks[-1].sendall(b"b")
            except OSError as error:
                word = ends.name(error)
        fine = True
        for _ in range(40):
            for sock in socks:
                sock.sendall(b"hello")
            for sock in socks:
                fine = exactly(sock, 5) == b"hello" and fine
        rounds.append([len(socks), word, fine])
        for sock in socks:
            sock.close()
    last = socket.create_connection(address)
    last.sendall(b"q")
    return {"rounds": rounds, "child": ends.reap(child)}


@scenario
def little_memory(extra):
    """Address space for little more than what is in use: mappings fail, connections do not."""
    go, goes = os.pipe()
    lst_port, port_out = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(50)
        port = struct.unpack("!H", os.read(lst_port, 2))[0]
        for _ in range(3):
            sock = socket.create_connection(("127.0.0.1", port))
            text = ends.stream(5, 100)
            for _ in range(200):
                sock.sendall(text)
                assert exactly(sock, 100) == text
            sock.close()
        os._exit(0)
    os.close(go), os.close(goes)
    room = bytearray(200)
    lst = socket.socket()
    lst.bind(("127.0.0.1", 0))
    lst.listen()
    with open("/proc/self/statm", encoding="utf-8") as statm:
        used = int(statm.read().split()[0]) * 4096
    limit = used + int(extra)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    os.write(port_out, struct.pack("!H", lst.getsockname()[1]))
    for _ in range(3):
        sock, _ = lst.accept()
        while n := sock.recv_into(room):
            sock.sendall(memoryview(room)[:n])
        sock.close()
    return {"child": ends.reap(child)}


def squeeze(who, turn):
    """Leaves this process no room for a segment in the first turn."""
    if who == "squeezed":
        with open("/proc/self/statm", encoding="utf-8") as statm:
            used = int(statm.read().split()[0]) * 4096
        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        limit = used + 300_000 if turn == 0 else hard
        resource.setrlimit(resource.RLIMIT_AS, (limit, hard))


@scenario
def memory_comes_back(squeezed):
    """An end that has no room for a segment at first, and then has.

    What a look at the memory said holds for a while, longer where other programs slowed it: the second turn begins
    when both ends have a segment, or with 3000 rounds over TCP.
    """
    lst = ends.listener()
    whose = {role: "squeezed" if role == squeezed else "" for role in ("client", "server")}
    child = os.fork()
    if child == 0:
        signal.alarm(50)
        with socket.create_connection(lst.getsockname()) as sock:
            text = ends.stream(5, 100)

            def rounds(count):
                for _ in range(count):
                    sock.sendall(text)
                    assert exactly(sock, 100) == text

            squeeze(whose["client"], 0)
            rounds(300)
            squeeze(whose["client"], 1)
            while "LD_PRELOAD" in os.environ and not ends.is_attached():
                rounds(100)
            rounds(3000)
        os._exit(0)
    sock, _ = lst.accept()
    for turn, rounds in enumerate((300, None)):
        squeeze(whose["server"], turn)
        while rounds != 0 and (text := exactly(sock, 100)):
            sock.sendall(text)
            rounds = rounds and rounds - 1
    sock.close()
    return {"child": ends.reap(child)}


def held():
    """Descriptors, mappings and memfds of this process."""
    with open("/proc/self/maps", encoding="utf-8") as maps:
        lines = [line.split(None, 5) for line in maps]
    segments = sum("memfd:sdp-conn" in line[-1] for line in lines if len(line) > 5)
    return {"fds": len(os.listdir("/proc/self/fd")), "segments": segments, "maps": len(lines)}


def files():
    """Inode numbers of the segments that are mapped."""
    with open("/proc/self/maps", encoding="utf-8") as maps:
        return {line.split(None, 5)[4] for line in maps if "memfd:sdp-conn" in line}


def has_peer_pidfd():
    """Whether the kernel has what a segment's second use takes."""
    one, other = socket.socketpair()
    try:
        os.close(one.getsockopt(socket.SOL_SOCKET, 77))
    except OSError:
        return False
    finally:
        one.close()
        other.close()
    return True


def serve_until_told(listener):
    """Echoes one connection after the other; at a first byte q on one the process executes a program without the
    library, which waits for that connection's end."""
    while True:
        sock, _ = listener.accept()
        first = sock.recv(1)
        if first == b"q":
            os.set_inheritable(sock.fileno(), True)
            os.dup2(sock.fileno(), 0)
            os.execve("/bin/cat", ["cat"], {})
        sock.sendall(first)
        echo(sock)
        sock.close()


@scenario
def peer_executes():
    """What is kept for a process that executes another program is given up at the end of the next connection."""
    listeners = [ends.listener() for _ in range(2)]
    children = []
    for listener in listeners:
        child = os.fork()
        if child == 0:
            signal.alarm(50)
            serve_until_told(listener)
        children.append(child)
    one, other = (listener.getsockname() for listener in listeners)

    def use(address):
        sock = socket.create_connection(address)
        for _ in range(30):
            sock.sendall(b"ab")
            assert exactly(sock, 2) == b"ab"
        sock.close()

    use(one)
    kept = held()["segments"]
    last = socket.create_connection(one)
    last.sendall(b"q")
    by = time.monotonic() + 20
    while "python" in os.readlink(f"/proc/{children[0]}/exe"):
        assert time.monotonic() < by, "it never executed anything"
        time.sleep(0.01)
    use(other)
    theirs = f"/proc/{children[0]}/fd"
    mine = [os.path.realpath(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")]
    left = held()["segments"]
    final = socket.create_connection(other)
    final.sendall(b"q")
    for sock in (last, final):
        sock.close()
    return {"kept": kept, "left": left, "directories": mine.count(theirs),
            "ends": [ends.reap(child) for child in children]}


@scenario
def leaves_nothing(threads):
    """Two hundred connections come, earn lanes and go; nothing of them stays but a few segments, which later ones
    use again, and no child of this process gets."""
    lst = ends.listener()
    child = os.fork()
    if child == 0:
        signal.alarm(55)
        while True:
            sock, _ = lst.accept()
            first = sock.recv(1)
            if first == b"q":
                sock.sendall(b"%d" % held()["segments"])
                os._exit(0)
            sock.sendall(first)
            echo(sock)
            sock.close()
    address = lst.getsockname()
    lst.close()
    most = 0
    seen = set()

    def once():
        nonlocal most
        sock = socket.create_connection(address)
        for _ in range(30):
            sock.sendall(b"ab")
            assert exactly(sock, 2) == b"ab"
        most = max(most, held()["segments"])
        seen.update(files())
        sock.close()

    def use():
        if threads == "threads":
            thread = threading.Thread(target=once)
            thread.start()
            thread.join()
        else:
            once()

    for _ in range(20):
        use()
    before = held()
    for _ in range(200):
        use()
    time.sleep(0.2)
    after = held()
    last = socket.create_connection(address)
    last.sendall(b"q")
    theirs = int(exactly(last, 10))
    ends.reap(child)
    last.close()
    heir = os.fork()
    if heir == 0:
        os._exit(held()["segments"])
    return {
        "heir": ends.reap(heir),
        "left": held()["segments"],
        "files": len(seen),
        "again": has_peer_pidfd(),
        "before": before,
        "after": after,
        "theirs": theirs,
        "had": most,
    }


@scenario
def idle_costs_nothing(count):
    """Connections that are on a lane and idle: no CPU time at either end, asleep in recv, poll and
    epoll."""
    import select

    count = int(count)
    resource.setrlimit(resource.RLIMIT_NOFILE, (count + 200, count + 200))
    lst = ends.listener()
    lst.listen(count)
    hear, tell = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(58)
        socks = [lst.accept()[0] for _ in range(count)]
        epoll = select.epoll()
        for sock in socks:
            epoll.register(sock, select.EPOLLIN)
        by_number = {sock.fileno(): sock for sock in socks}
        gone = 0
        while gone < count:
            for number, _ in epoll.poll():
                data = by_number[number].recv(100)
                if data:
                    by_number[number].sendall(data)
                else:
                    epoll.unregister(number)
                    gone += 1
        os._exit(0)
    socks = [socket.create_connection(lst.getsockname()) for _ in range(count)]
    for _ in range(20):
        for sock in socks:
            sock.sendall(b"z")
        for sock in socks:
            assert sock.recv(1) == b"z"
    segments = held()["segments"]
    poll = select.poll()
    for sock in socks[2:]:
        poll.register(sock, select.POLLIN)
    sleepers = [
        threading.Thread(target=lambda: socks[0].recv(1)),
        threading.Thread(target=lambda: poll.poll(4000)),
    ]
    for sleeper in sleepers:
        sleeper.start()

    def ticks(pid):
        with open(f"/proc/{pid}/stat", encoding="utf-8") as stat:
            fields = stat.read().rpartition(")")[2].split()
        return int(fields[11]) + int(fields[12])

    time.sleep(0.5)
    before = ticks(os.getpid()), ticks(child)
    time.sleep(2)
    after = ticks(os.getpid()), ticks(child)
    socks[0].sendall(b"w")
    for sleeper in sleepers:
        sleeper.join(10)
    for sock in socks:
        sock.close()
    return {
        "ticks": [b - a for a, b in zip(before, after)],
        "segments": segments,
        "child": ends.reap(child),
    }


def become(uid):
    """Another user, as a login does it."""
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)


@scenario
def two_users():
    """The client belongs to another user, whose process image starts with that id."""
    lst = ends.listener()
    port = str(lst.getsockname()[1])
    child = os.fork()
    if child == 0:
        lst.close()
        become(65534)
        os.execv(sys.executable, [sys.executable, __file__, "client_of", port])
    sock, _ = lst.accept()
    echo(sock)
    sock.close()
    return {"child": ends.reap(child)}


@scenario
def client_of(port):
    """The other half of `two_users`."""
    sock = socket.create_connection(("127.0.0.1", int(port)))
    ends.warm_up(sock, True)
    fine = bulk(sock)
    sock.close()
    if not fine:
        os._exit(1)
    return {}


@scenario
def same_other_user():
    """Both ends belong to one user who is not root."""
    become(65534)
    os.execv(sys.executable, [sys.executable, __file__, "one_echo"])


def rendezvous_name(sock):
    """The abstract address at which the ends of a connection meet."""
    def end(address):
        return b"\0" * 10 + b"\xff\xff" + socket.inet_aton(address[0]) + struct.pack("!H", address[1])

    ends_ = sorted([end(sock.getsockname()), end(sock.getpeername())])
    return b"\0sdp/3/" + b"".join(ends_)


@scenario
def squatted(how):
    """Somebody else binds the rendezvous name before the ends meet: another user, or a liar of the
    same user who answers with rubbish."""
    lst = ends.listener()
    sock = socket.create_connection(lst.getsockname())
    name = rendezvous_name(sock)
    hear, tell = os.pipe()
    squatter = os.fork()
    if squatter == 0:
        signal.alarm(50)
        sock.close(), lst.close()
        if how == "stranger":
            become(65534)
        trap = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        trap.bind(name)
        trap.listen(8)
        os.write(tell, b"b")
        trap.settimeout(1)
        caught = []
        end = time.monotonic() + 4
        while time.monotonic() < end:
            try:
                victim, _ = trap.accept()
            except TimeoutError:
                continue
            caught.append(victim)
            if how == "rubbish":
                victim.send(bytes(range(256)))
            elif how == "hangup":
                victim.close()
        os._exit(0)
    assert os.read(hear, 1) == b"b"
    other = os.fork()
    if other == 0:
        signal.alarm(50)
        sock.close()
        accepted, _ = lst.accept()
        lst.close()
        echo(accepted)
        os._exit(0)
    lst.close()
    fine = True
    for i in range(3000):
        sock.sendall(b"%08d" % i)
        fine = exactly(sock, 8) == b"%08d" % i and fine
    fine = bulk(sock) and fine
    end = finish(sock, other)
    os.kill(squatter, signal.SIGKILL)
    os.waitpid(squatter, 0)
    return {"fine": fine, "end": end}


if __name__ == "__main__":
    main(TABLE)
