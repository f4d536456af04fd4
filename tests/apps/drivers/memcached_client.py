"""Stores and reads values of many sizes in memcached; prints a checksum of what came back."""

import hashlib
import socket
import sys
import threading

ADDRESS = sys.argv[2] if len(sys.argv) > 2 else "127.0.0.1"
VALUES = int(sys.argv[3]) if len(sys.argv) > 3 else 400
THREADS = 4


def talk(port, seed, digests):
    """One connection: set and get, each answer compared."""
    digest = hashlib.sha256()
    with socket.create_connection((ADDRESS, port)) as s:
        stream = s.makefile("rb")
        for i in range(VALUES):
            value = hashlib.sha256(b"%d-%d" % (seed, i)).digest() * (1 + i * 3)
            s.sendall(b"set k%d-%d 0 0 %d\r\n" % (seed, i, len(value)) + value + b"\r\n")
            answer = stream.readline()
            assert answer == b"STORED\r\n", answer
            s.sendall(b"get k%d-%d\r\n" % (seed, i))
            header = stream.readline().split()
            back = stream.read(int(header[3]) + 2)
            assert stream.readline() == b"END\r\n"
            assert back == value + b"\r\n", (seed, i)
            digest.update(back)
    digests[seed] = digest.hexdigest()


def main():
    """Several connections at once."""
    digests = {}
    threads = [threading.Thread(target=talk, args=(int(sys.argv[1]), n, digests))
               for n in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for seed in range(THREADS):
        print(seed, digests[seed])


main()
