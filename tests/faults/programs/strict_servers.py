"""Servers whose rules take SDP clients only, and who comes."""

import asyncio
import ctypes
import functools
import os
import select
import socket
import subprocess
import sys
import time

import ends

TABLE = {}
scenario = functools.partial(ends.scenario, TABLE)
ROUNDS = 60
PATIENCE_S = 20


def family(host):
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def listening_on(host, sock=None, port=0):
    """A listener; `host` `::` takes IPv4, too."""
    sock = sock or socket.socket(family(host), socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if host == "::":
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    sock.bind((host, port))
    sock.listen(16)
    return sock


def explicit_socket():
    """A socket of AF_INET_SDP; Python knows it as what it is told to be."""
    fd = ctypes.CDLL(None).socket(27, socket.SOCK_STREAM, 0)
    return socket.socket(socket.AF_INET, socket.SOCK_STREAM, fileno=fd)


def waiting(listening):
    """Connections that wait to be accepted (tcpi_unacked of a listener)."""
    return int.from_bytes(listening.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 28)[24:], sys.byteorder)


def answer(sock):
    """Echoes to the end."""
    sock.settimeout(PATIENCE_S)
    while data := sock.recv(4096):
        sock.sendall(data)


def talk(host, port):
    """What a client saw: `talked`, or the error's name."""
    try:
        with socket.create_connection((host, port), timeout=PATIENCE_S) as sock:
            for number in range(ROUNDS):
                word = b"%8d" % number
                sock.sendall(word)
                if ends.exactly(sock, len(word)) != word:
                    return "garbled"
    except (ConnectionError, EOFError) as error:
        return type(error).__name__
    return "talked"


def client(kind, host, port):
    """Starts a client in a process of its own, with the library or without."""
    env = dict(os.environ)
    if kind == "plain":
        env.pop("LD_PRELOAD", None)
    words = [sys.executable, __file__, "client", host, str(port)]
    return subprocess.Popen(words, env=env, stdout=subprocess.PIPE)


def told(process):
    """What that client saw."""
    return process.communicate(timeout=PATIENCE_S * 2)[0].decode().strip()


def pair(listening, host, kinds):
    """One client after the other; the server takes whom it gets until all have ended."""
    seen = []
    for kind in kinds:
        process = client(kind, host, listening.getsockname()[1])
        listening.settimeout(0.02)
        while process.poll() is None:
            try:
                sock, peer = listening.accept()
            except TimeoutError:
                continue
            assert peer[0].endswith(("127.0.0.1", "::1")), peer
            answer(sock)
            sock.close()
        seen.append(told(process))
    return seen


@scenario
def clients(bound, to, *kinds):
    """Clients of these kinds."""
    with listening_on(bound) as listening:
        return pair(listening, to, kinds)


@scenario
def explicit(*kinds):
    """The same with a listener of AF_INET_SDP."""
    with listening_on("127.0.0.1", explicit_socket()) as listening:
        return pair(listening, "127.0.0.1", kinds)


@scenario
def blocking():
    """A blocking accept goes on to the next client, with room for its address."""
    with listening_on("127.0.0.1") as listening:
        port = listening.getsockname()[1]
        plain = [client("plain", "127.0.0.1", port) for _ in range(3)]
        while waiting(listening) < len(plain):
            time.sleep(0.01)
        library = client("library", "127.0.0.1", port)
        sock, peer = listening.accept()
        answer(sock)
        return [*(told(one) for one in plain), told(library), len(peer)]


@scenario
def nonblocking():
    """accept answers EAGAIN when nobody else waits."""
    with listening_on("127.0.0.1") as listening:
        listening.setblocking(False)
        plain = client("plain", "127.0.0.1", listening.getsockname()[1])
        assert select.select([listening], [], [], PATIENCE_S)[0]
        try:
            listening.accept()
            result = "accepted"
        except BlockingIOError:
            result = "EAGAIN"
        return [told(plain), result]


@scenario
def one_thread():
    """Connect, then accept, in one thread: nobody waits for anybody."""
    with listening_on("127.0.0.1") as listening:
        sock = socket.create_connection(listening.getsockname())
        other, _ = listening.accept()
        sock.sendall(b"hello")
        return other.recv(5).decode()


@scenario
def gone():
    """A client with the library that has sent, closed and ended is served what it sent."""
    with listening_on("127.0.0.1") as listening:
        code = "import socket,sys; s=socket.create_connection(('127.0.0.1', int(sys.argv[1]))); s.sendall(b'last'); s.close()"
        subprocess.run([sys.executable, "-c", code, str(listening.getsockname()[1])], check=True, timeout=PATIENCE_S)
        sock, _ = listening.accept()
        return ends.exactly(sock, 4).decode()


@scenario
def aio():
    """An event loop's server."""

    async def serve():
        async def echo(reader, writer):
            while data := await reader.read(4096):
                writer.write(data)
            writer.close()

        server = await asyncio.start_server(echo, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        seen = []
        for kind in ("plain", "library", "plain", "library"):
            seen.append(await asyncio.to_thread(lambda kind=kind: told(client(kind, "127.0.0.1", port))))
        server.close()
        return seen

    return asyncio.run(serve())


@scenario
def changes(file):
    """The rule file becomes strict, and back, while the server listens."""
    with listening_on("127.0.0.1") as listening:
        seen = pair(listening, "127.0.0.1", ["plain"])
        for line in ("use sdp server * *:*", "use both server * *:*"):
            with open(file, "w", encoding="utf-8") as rules:
                rules.write(line + "\n")
            time.sleep(1)  # that is how long it may take
            seen += pair(listening, "127.0.0.1", ["plain", "library"])
        return seen


@scenario
def two_ports(strict, other):
    """One program: one port for SDP, one for both."""
    seen = []
    for port in (strict, other):
        with listening_on("127.0.0.1", port=int(port)) as listening:
            seen += pair(listening, "127.0.0.1", ["plain", "library"])
    return seen


if __name__ == "__main__":
    if sys.argv[1] == "client":
        print(talk(sys.argv[2], int(sys.argv[3])))
    else:
        ends.main(TABLE)
