"""Connections that go on in another process image, or another process, and earn lanes of their own there."""

import functools
import os
import signal
import socket
import sys
import time

import ends
from ends import exactly, listener, main, stream

TABLE = {}
scenario = functools.partial(ends.scenario, TABLE)

MESSAGE = 1000
ROUNDS = 400
# Clients of an activated service, one after another.
ASKERS = 2


def answer(sock, rounds=None):
    """Sends back what comes, for some messages or until the end."""
    while rounds is None or rounds > 0:
        data = exactly(sock, MESSAGE)
        if not data:
            return
        sock.sendall(data)
        rounds = rounds and rounds - 1


def asker(port):
    """A child that asks ROUNDS questions and compares the answers; its pid."""
    child = os.fork()
    if child == 0:
        signal.alarm(25)
        fine = True
        with socket.create_connection(("127.0.0.1", port)) as sock:
            for i in range(ROUNDS):
                question = stream(i, MESSAGE)
                sock.sendall(question)
                fine = exactly(sock, MESSAGE) == question and fine
            sock.shutdown(socket.SHUT_WR)
            fine = sock.recv(1) == b"" and fine
        os._exit(0 if fine else 1)
    return child


def accepted():
    """A connection to an asker, and the asker's pid."""
    lst = listener()
    child = asker(lst.getsockname()[1])
    sock, _ = lst.accept()
    lst.close()
    return sock, child


@scenario
def image(number):
    """What an executed image does with the connection that it finds on `number`."""
    number = int(number)
    if number <= 2:
        moved = os.dup(number)
        null = os.open("/dev/null", os.O_RDWR)
        for standard in (0, 1):
            os.dup2(null, standard)
        os.close(null)
        number = moved
    answer(socket.socket(fileno=number))
    os._exit(0)


@scenario
def two_numbers(one, other):
    """An executed image answers through two numbers of its connection in turn."""
    ways = [socket.socket(fileno=int(number)) for number in (one, other)]
    turn = 0
    while data := exactly(ways[turn % 2], MESSAGE):
        ways[turn // 2 % 2].sendall(data)
        turn += 1
    os._exit(0)


@scenario
def aliased(one, other):
    """A connection that an executed image has under two numbers."""
    sock, child = accepted()
    server = os.fork()
    if server == 0:
        signal.alarm(25)
        for target in (int(one), int(other)):
            if target != sock.fileno():
                os.dup2(sock.fileno(), target)
            os.set_inheritable(target, True)
        if sock.fileno() not in (int(one), int(other)):
            sock.close()
        os.execv(sys.executable, [sys.executable, __file__, "two_numbers", one, other])
    sock.close()
    return {"asker": ends.reap(child), "server": ends.reap(server)}


def execute(number, environment):
    os.execve(sys.executable, [sys.executable, __file__, "image", str(number)], environment)


@scenario
def executed(number):
    """A fork child executes an image with the connection: activation, or inetd."""
    sock, child = accepted()
    server = os.fork()
    if server == 0:
        signal.alarm(25)
        number = int(number)
        for target in (0, 1) if number <= 2 else (number,):
            os.dup2(sock.fileno(), target)
        if sock.fileno() not in (0, 1, number):
            sock.close()
        os.set_inheritable(number, True)
        execute(number, os.environ)
    sock.close()
    return {"asker": ends.reap(child), "server": ends.reap(server)}


@scenario
def manager(port, library):
    """A process without the library: accepts, and executes the image that has it."""
    signal.alarm(25)
    lst = socket.socket(fileno=int(port))
    sock, _ = lst.accept()
    os.dup2(sock.fileno(), 3)
    os.set_inheritable(3, True)
    execute(3, {**os.environ, **({"LD_PRELOAD": library} if library else {})})


@scenario
def activated():
    """Nobody with the library saw this end begin."""
    lst = listener()
    child = asker(lst.getsockname()[1])
    server = os.fork()
    if server == 0:
        library = os.environ.pop("LD_PRELOAD", "")
        number = os.dup(lst.fileno())
        os.set_inheritable(number, True)
        words = [sys.executable, __file__, "manager", str(number), library]
        os.execve(sys.executable, words, os.environ)
    lst.close()
    return {"asker": ends.reap(child), "server": ends.reap(server)}


@scenario
def activated_service(mode):
    """What a service manager starts, with its listener or its connection."""
    signal.alarm(25)
    if mode == "inetd":
        answer(socket.socket(fileno=0))
        os._exit(0)
    assert os.environ["LISTEN_FDS"] == "1" and os.environ["LISTEN_PID"] == str(os.getpid())
    given = socket.socket(fileno=3)
    if mode == "accept":
        answer(given)
        os._exit(0)
    for _ in range(ASKERS):
        sock, _ = given.accept()
        with sock:
            answer(sock)
    os._exit(0)


def until_listening(port):
    """Waits for the kernel's table to have a listener on a port of loopback."""
    end = time.monotonic() + 20
    while time.monotonic() < end:
        with open("/proc/net/tcp", encoding="utf-8") as table:
            if any(line.split()[1:4:2] == [f"0100007F:{port:04X}", "0A"] for line in table):
                return
        time.sleep(0.01)
    raise AssertionError(f"nobody listens on {port}")


@scenario
def activated_by_systemd(mode):
    """The activator has no library; what it starts has."""
    ours = {key: value for key, value in os.environ.items() if "SDP" in key or key == "LD_PRELOAD"}
    options = {"listener": [], "accept": ["--accept"], "inetd": ["--accept", "--inetd"]}[mode]
    # Nobody else gets the port meanwhile; who asks for it by name does.
    reserved = socket.socket()
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reserved.bind(("127.0.0.1", 0))
    port = reserved.getsockname()[1]
    activator = os.fork()
    if activator == 0:
        signal.alarm(25)
        words = ["systemd-socket-activate", "-l", f"127.0.0.1:{port}", *options]
        words += [f"-E{key}={value}" for key, value in ours.items()]
        words += [sys.executable, __file__, "activated_service", mode]
        rest = {key: value for key, value in os.environ.items() if key not in ours}
        os.execvpe(words[0], words, rest)
    until_listening(port)
    codes = [ends.reap(asker(port)) for _ in range(ASKERS)]
    if mode != "listener":
        ends.kill(activator)
        activator = None
    return {"askers": codes, "service": activator and ends.reap(activator)}


@scenario
def executed_late():
    """The same process serves for a while, on a lane, and then executes another image."""
    sock, child = accepted()
    server = os.fork()
    if server == 0:
        signal.alarm(25)
        answer(sock, ROUNDS // 2)
        os.dup2(sock.fileno(), 3, inheritable=True)
        execute(3, os.environ)
    sock.close()
    return {"asker": ends.reap(child), "server": ends.reap(server)}


@scenario
def relayed():
    """Three processes serve in turn; each passes the connection on and closes it."""
    sock, child = accepted()
    servers = []
    for _ in range(3):
        here, there = socket.socketpair()
        server = os.fork()
        if server == 0:
            signal.alarm(25)
            sock.close()
            here.close()
            there.sendall(b"c")  # whoever passes on what relatives hold too passes on what stays on TCP
            _, numbers, _, _ = socket.recv_fds(there, 1, 1)
            sock = socket.socket(fileno=numbers[0])
            # Whoever serves goes on here, as the next giver.
            answer(sock, ROUNDS // 4)
            servers = []
            continue
        there.close()
        here.recv(1)
        socket.send_fds(here, [b"x"], [sock.fileno()])
        sock.close()
        codes = [ends.reap(server)]
        if child is None:
            os._exit(codes[0])
        return {"asker": ends.reap(child), "servers": codes}
    answer(sock)
    os._exit(0)


@scenario
def kept_by_the_parent():
    """An image gets the connection while its parent keeps and uses it too: it stays on TCP."""
    sock, child = accepted()
    go, went = os.pipe()
    server = os.fork()
    if server == 0:
        signal.alarm(25)
        os.read(go, 1)
        os.dup2(sock.fileno(), 3, inheritable=True)
        execute(3, os.environ)
    answer(sock, 4)
    os.write(went, b"x")
    served = ends.reap(server)
    sock.close()
    return {"asker": ends.reap(child), "server": served}


main(TABLE)
