"""A client of `exchange.py` that does to the descriptors of its RDMA device what programs do to numbers that are not theirs.

    hidden.py ADDRESS PORT FOLDER HOW

HOW: `look`, `close`, `close_range`, `closefrom`, `close-all`, `dup2`; `dup2-full`: where there are no other numbers;
`dup2-busy`: again and again, while another thread exchanges.
"""

import ctypes
import fcntl
import hashlib
import os
import resource
import socket
import struct
import subprocess
import sys
import threading
import time

LIMIT_S = 30
EBADF = 9
CLOEXEC = 0o2000000
# More than the library may need, and fewer than there is room for below its numbers.
COUNT = 40
# Completions, the connection manager's events and those of the device, as the stand-in names them.
DOORBELLS = 3
TIMES = 12


def take(connection, count):
    data = b""
    while len(data) < count:
        part = connection.recv(count - len(data))
        assert part, "the stream has ended"
        data += part
    return data


def exchange(connection, rounds, size=700):
    for at in range(rounds):
        body = bytes([at % 251]) * size
        connection.sendall(struct.pack("!I", size) + body)
        assert take(connection, 32 + size) == hashlib.sha256(body).digest() + body, at


def lowest():
    """The numbers that the program's next files get."""
    files = [os.open("/dev/null", os.O_RDONLY) for _ in range(COUNT)]
    for file in files:
        os.close(file)
    return files


def descriptors():
    """By number, the files of all descriptors beside the standard ones."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            found[int(name)] = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:
            pass  # of the listing itself
    return {number: file for number, file in found.items() if number > 2}


def hidden(own):
    return {number: file for number, file in descriptors().items() if number not in own}


def meet(connection, own, before=DOORBELLS):
    """Exchanges until the device is there."""
    end = time.monotonic() + LIMIT_S
    while sum("doorbells" in file for file in hidden(own).values()) < before:
        assert time.monotonic() < end, descriptors()
        exchange(connection, 5)
        time.sleep(0.01)
    # Until the lane is used, which no descriptor shows.
    exchange(connection, 60)


def failed_with(call, *words):
    try:
        call(*words)
    except OSError as error:
        return error.errno
    return 0


def look(ours):
    """They are far from the program's, and no other program gets them."""
    assert any(file == "/dev/null" for file in ours.values()), ours
    for number in ours:
        lines = open(f"/proc/self/fdinfo/{number}", encoding="ascii").read().splitlines()
        (flags,) = (int(line.split()[1], 8) for line in lines if line.startswith("flags:"))
        assert flags & CLOEXEC, (number, ours[number], lines)
    environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    argv = ["find", "/proc/self/fd", "-printf", "%f %l\n"]
    done = subprocess.run(argv, env=environment, close_fds=False, capture_output=True, text=True, check=False)
    got = dict(line.split(" ", 1) for line in done.stdout.splitlines() if line.split(" ", 1)[0].isdigit())
    assert got and not any("doorbells" in file for file in got.values()), got
    assert not {int(number) for number in got} & set(ours), (got, ours)


def close(ours):
    """For the program there are none."""
    for number in ours:
        assert failed_with(os.close, number) == EBADF, number
        assert failed_with(fcntl.fcntl, number, fcntl.F_GETFD) == EBADF, number


def close_all(own):
    top = max(descriptors()) + 50
    for number in range(3, top):
        if number not in own:
            assert failed_with(os.close, number) == EBADF, number


def replace(ours, folder):
    """Files of the program's on all their numbers."""
    for number in ours:
        file = os.open(f"{folder}/{number}", os.O_RDWR | os.O_CREAT, 0o600)
        os.dup2(file, number)
        os.close(file)


def replace_again(connection, own, ours, folder):
    """Wherever they go; another thread exchanges meanwhile. All numbers that the program has taken."""
    is_over = threading.Event()
    failed = []

    def work():
        try:
            while not is_over.is_set():
                exchange(connection, 1)
        except BaseException as error:
            failed.append(repr(error))

    worker = threading.Thread(target=work)
    worker.start()
    taken = dict(ours)
    for _ in range(TIMES):
        again = hidden(own | set(taken))
        again = {number: file for number, file in again.items() if number > min(ours)}
        assert sum("doorbells" in file for file in again.values()) >= DOORBELLS, again
        replace(again, folder)
        taken |= again
    is_over.set()
    worker.join()
    assert not failed, failed
    return taken


def are_untouched(ours, folder):
    """Nobody has closed them or written there."""
    for number in ours:
        is_as, was = os.fstat(number), os.stat(f"{folder}/{number}")
        assert (is_as.st_dev, is_as.st_ino, is_as.st_size) == (was.st_dev, was.st_ino, 0), (number, is_as)


def main():
    address, port, folder, how = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4]
    libc = ctypes.CDLL(None, use_errno=True)
    with socket.create_connection((address, port)) as connection:
        own = {connection.fileno()}
        before = lowest()
        meet(connection, own)
        assert lowest() == before, (lowest(), before)
        ours = hidden(own)
        assert min(ours) > max(before), ours
        first = connection.fileno() + 1
        if how == "look":
            look(ours)
        elif how == "close":
            close(ours)
        elif how == "close_range":
            assert libc.close_range(ctypes.c_uint(first), ctypes.c_uint(0xFFFFFFFF), 0) == 0
        elif how == "closefrom":
            libc.closefrom(first)
        elif how == "close-all":
            close_all(own)
        elif how.startswith("dup2"):
            if how == "dup2-full":
                resource.setrlimit(resource.RLIMIT_NOFILE, (max(ours) + 1, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
            replace(ours, folder)
        if how == "dup2-busy":
            ours = replace_again(connection, own, ours, folder)
        exchange(connection, 100)
        if how.startswith("dup2"):
            are_untouched(ours, folder)
            own |= set(ours)
        else:
            assert set(ours) <= set(hidden(own)), (ours, hidden(own))
            assert lowest() == before, (lowest(), before)
        # The connection manager is there for others, too.
        with socket.create_connection((address, port)) as another:
            own.add(another.fileno())
            exchange(another, 100)
            time.sleep(0.2)
            exchange(another, 100)
            another.shutdown(socket.SHUT_WR)
            assert struct.unpack("!I", take(another, 4))[0] == 200
        if how.startswith("dup2"):
            are_untouched(ours, folder)
        connection.shutdown(socket.SHUT_WR)
        assert struct.unpack("!I", take(connection, 4))[0] >= 160
    if how.startswith("dup2"):
        are_untouched(ours, folder)
    print("every byte")


main()
