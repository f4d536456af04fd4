"""Clients whose rules want SDP or nothing, in front of servers with the library and without."""

import errno
import functools
import os
import select
import socket
import subprocess
import sys

import ends

TABLE = {}
scenario = functools.partial(ends.scenario, TABLE)
ROUNDS = 60
PATIENCE_S = 20


def family(host):
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def serve(host, option=None):
    """Echoes on a listener bound to `host`, each connection to its end."""
    listening = socket.socket(family(host))
    if option == "v6only":
        listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    elif host == "::":
        listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    listening.bind((host, 0))
    listening.listen(8)
    print(listening.getsockname()[1], flush=True)
    while True:
        sock, _ = listening.accept()
        if os.fork() == 0:
            listening.close()
            while data := sock.recv(4096):
                sock.sendall(data)
            os._exit(0)
        sock.close()


class Server:
    """A server process, with the library or without; it ends with the scenario."""

    def __init__(self, host, *, plain=False, option=()):
        env = dict(os.environ)
        if plain:
            env.pop("LD_PRELOAD", None)
        self.process = subprocess.Popen(
            [sys.executable, __file__, "serve", host, *option], env=env, stdout=subprocess.PIPE
        )
        self.port = int(self.process.stdout.readline())


def talk(sock):
    """Enough back and forth for a lane; whether every answer was right."""
    sock.settimeout(PATIENCE_S)
    for number in range(ROUNDS):
        word = b"%8d" % number
        sock.sendall(word)
        if ends.exactly(sock, len(word)) != word:
            return False
    return True


def attempt(host, port, *, nonblocking=False, local=None):
    """What connecting gave: `talked`, or the error's name."""
    sock = socket.socket(family(host))
    if local:
        sock.bind((local, 0))
    try:
        if nonblocking:
            sock.setblocking(False)
            code = sock.connect_ex((host, port))
            if code == errno.EINPROGRESS:
                select.select([], [sock], [], PATIENCE_S)
                code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if code:
                return errno.errorcode[code]
        else:
            try:
                sock.connect((host, port))
            except OSError as error:
                return errno.errorcode[error.errno]
        return "talked" if talk(sock) else "garbled"
    finally:
        sock.close()


@scenario
def serve_for_ever(host, option=None):
    serve(host, option)


@scenario
def reach(server_host, host, how):
    """One client, one server; `how`: `library` or `plain`, each also non-blocking."""
    kind, _, mode = how.partition("-")
    server = Server(server_host, plain=kind == "plain")
    return attempt(host, server.port, nonblocking=mode == "nonblocking")


@scenario
def nobody(host, port, mode):
    """Nobody listens there."""
    return attempt(host, int(port), nonblocking=mode == "nonblocking")


@scenario
def closed():
    """A port of ours at which nobody listens any more."""
    listening = ends.listener()
    port = listening.getsockname()[1]
    listening.close()
    return attempt("127.0.0.1", port)


@scenario
def bound_source():
    """The client's socket is bound before it connects."""
    return attempt("127.0.0.1", Server("127.0.0.1").port, local="127.0.0.1")


@scenario
def again():
    """A socket that was refused can be used for a server that can."""
    plain, library = Server("127.0.0.1", plain=True), Server("127.0.0.1")
    sock = socket.socket()
    first = sock.connect_ex(("127.0.0.1", plain.port))
    sock.connect(("127.0.0.1", library.port))
    return [errno.errorcode[first], talk(sock)]


@scenario
def one_thread():
    """Connect, then accept, in one thread."""
    listening = ends.listener()
    sock = socket.create_connection(listening.getsockname())
    other, _ = listening.accept()
    sock.sendall(b"hello")
    return other.recv(5).decode()


@scenario
def both_kinds():
    """Clients with the library and without on one listening port."""
    server = Server("0.0.0.0")
    env = dict(os.environ)
    env.pop("LD_PRELOAD", None)
    words = [sys.executable, __file__, "nobody", "127.0.0.1", str(server.port), "blocking"]
    plain = subprocess.run(words, env=env, stdout=subprocess.PIPE, check=True, timeout=40)
    return [attempt("127.0.0.1", server.port), plain.stdout.decode().strip().strip('"')]


@scenario
def two_peers(sdp_host, tcp_host):
    """SDP for one peer and TCP for another in one program."""
    servers = Server(sdp_host), Server(tcp_host)
    return [attempt(h, s.port) for h, s in zip((sdp_host, tcp_host), servers)]


@scenario
def bad_addresses():
    """What is wrong with an address the kernel tells, as ever."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    told = []
    for address, length in ((None, 16), (ctypes.c_void_p(1), 16), (b"\2\0" + bytes(14), 3)):
        sock = socket.socket()
        told.append([libc.connect(sock.fileno(), address, length), ctypes.get_errno()])
    return told


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(*sys.argv[2:])
    ends.main(TABLE)
