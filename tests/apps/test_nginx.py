"""nginx: two workers, sendfile, keep-alive, proxy between workers, reload; curl and wrk."""

import hashlib
import os
import signal

from support import ONE_TOO, check, placements
from support.procs import wait_until

BIG = b"".join(hashlib.sha512(b"%d" % i).digest() for i in range(50_000))

CONFIG = """
daemon off; master_process on; worker_processes 2; {user}
error_log {dir}/error.log; pid {dir}/pid; worker_shutdown_timeout 20s;
events {{ worker_connections 256; multi_accept on; }}
http {{
    sendfile on; tcp_nopush on; access_log off; keepalive_requests 1000000;
    client_body_temp_path {dir}/body; proxy_temp_path {dir}/proxy;
    fastcgi_temp_path {dir}/fastcgi; uwsgi_temp_path {dir}/uwsgi; scgi_temp_path {dir}/scgi;
    upstream direct {{ server 127.0.0.1:{port}; keepalive 8; }}
    server {{
        listen 127.0.0.1:{port} reuseport; root {dir}/html;
        location = /generation {{ return 200 "{generation}"; }}
    }}
    server {{
        listen 127.0.0.1:{proxy};
        location / {{
            proxy_pass http://direct; proxy_http_version 1.1; proxy_set_header Connection "";
        }}
    }}
}}
"""


def start(stage, generation):
    """Starts nginx; (program, ports, a function that writes another generation of its rules)."""
    html = stage.dir / "html"
    html.mkdir()
    (html / "big").write_bytes(BIG)
    (html / "small").write_text("hello\n")
    port, proxy = stage.port(), stage.port()
    # Root's master changes the user of its workers.
    workers = stage.servant("nginx")

    def configure(number):
        text = CONFIG.format(dir=stage.dir, port=port, proxy=proxy, generation=number,
                             user=f"user {workers};" if workers else "")
        (stage.dir / "nginx.conf").write_text(text)

    configure(generation)
    argv = ["nginx", "-c", stage.dir / "nginx.conf", "-p", stage.dir]
    server = stage.server("nginx", argv, port=port, user=workers and "root", stop=signal.SIGTERM)
    stage.space.wait_listening(proxy, server)
    return server, port, proxy, configure


def pages(stage):
    """Files by sendfile over one kept connection, directly and through the proxy."""
    server, port, proxy, configure = start(stage, 1)
    result = {}
    for name, at in (("direct", port), ("proxied", proxy)):
        base = f"http://127.0.0.1:{at}"
        many = stage.client("curl", ["curl", "-sS", f"{base}/small?[1-200]"]).out
        large = stage.client("curl", ["curl", "-sS", f"{base}/big?[1-24]"]).out
        part = stage.client("curl", ["curl", "-sS", "-r", "1000-2999999", f"{base}/big"]).out
        assert many == b"hello\n" * 200
        assert large == BIG * 24
        assert part == BIG[1000:3000000]
        result[name] = [hashlib.sha256(body).hexdigest() for body in (many, large, part)]
    stage.stop(server)
    return result


def reload(stage):
    """Load while the configuration changes: no request fails and the new workers answer."""
    server, port, _, configure = start(stage, 1)
    base = f"http://127.0.0.1:{port}"
    running = [
        stage.start("curl", ["curl", "-sS", f"{base}/big?[1-40]", "--retry", "0"]) for _ in range(2)
    ]
    configure(2)
    os.kill(int((stage.dir / "pid").read_text()), signal.SIGHUP)
    ask = ["curl", "-sS", f"{base}/generation"]
    wait_until(lambda: stage.client("ask", ask, plain=True).out == b"2", "the new workers")
    bodies = [stage.finish(client).out for client in running]
    assert [body == BIG * 40 for body in bodies] == [True, True]
    after = stage.client("curl", ["curl", "-sS", f"{base}/big", f"{base}/generation"]).out
    assert after == BIG + b"2"
    stage.stop(server)
    return [hashlib.sha256(body).hexdigest() for body in bodies + [after]]


def load(stage):
    """wrk on kept connections: not one error."""
    server, port, _, _ = start(stage, 1)
    base = f"http://127.0.0.1:{port}"
    result = {}
    for page in ("small", "big"):
        argv = ["wrk", "-t", "2", "-c", "8", "-d", "2s", f"{base}/{page}"]
        text = stage.client("wrk", argv).text
        assert "requests in" in text and "Socket errors" not in text and "Non-2xx" not in text, text
        result[page] = "no error"
    stage.stop(server)
    return result


@placements(*ONE_TOO)
def test_pages(ladder, placement):
    """Every page is that of plain TCP."""
    check(ladder, "nginx-pages", pages, placement, bulk=True, chain=True)


@placements()
def test_reload(ladder, placement):
    """A reload under load loses no byte."""
    check(ladder, "nginx-reload", reload, placement, quiet=False)


@placements()
def test_wrk(ladder, placement):
    """No error under load."""
    check(ladder, "nginx-wrk", load, placement, quiet=False)
