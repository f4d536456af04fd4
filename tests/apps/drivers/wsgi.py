"""A WSGI application: files as they are or by chunks, checksums of what is sent to it."""

import hashlib
import os
from pathlib import Path

CHUNK = 50_000


def chunks(data):
    """Pieces that are sent one by one."""
    for start in range(0, len(data), CHUNK):
        yield data[start : start + CHUNK]


def held(name):
    """What is sent under a name."""
    return b"small\n" if name == "small" else (Path(os.environ["FOLDER"]) / name).read_bytes()


def application(environ, start_response):
    """/chunks/NAME, /file/NAME, /sum, /pid."""
    _, what, *name = environ["PATH_INFO"].split("/")
    if what == "file":
        file = open(Path(os.environ["FOLDER"]) / name[0], "rb")
        length, answer = os.fstat(file.fileno()).st_size, environ["wsgi.file_wrapper"](file)
    elif what == "chunks":
        data = held(name[0])
        length, answer = len(data), chunks(data)
    elif what == "sum":
        digest = hashlib.sha256()
        while data := environ["wsgi.input"].read(CHUNK):
            digest.update(data)
        answer = [digest.hexdigest().encode()]
        length = len(answer[0])
    else:
        answer = [b"%d" % os.getpid()]
        length = len(answer[0])
    headers = [("Content-Type", "application/octet-stream"), ("Content-Length", str(length))]
    start_response("200 OK", headers)
    return answer
