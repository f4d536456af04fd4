"""haproxy in front of a Python server: two hops, a connection for each request behind."""

import hashlib
import signal

from support import check, placements
from support.stage import python

BIG = b"".join(hashlib.sha512(b"%d" % i).digest() for i in range(50_000))

CONFIG = """
defaults
    mode http
    timeout connect 5s
    timeout client 20s
    timeout server 20s
frontend front
    bind 127.0.0.1:{port}
    default_backend back
backend back
    server python 127.0.0.1:{behind}
"""


def proxied(stage):
    """Small and large pages through the proxy."""
    pages = stage.dir / "pages"
    pages.mkdir()
    (pages / "big").write_bytes(BIG)
    (pages / "small").write_text("hello\n")
    port, behind = stage.port(), stage.port()
    (stage.dir / "haproxy.cfg").write_text(CONFIG.format(port=port, behind=behind))
    http = [python(), "-m", "http.server", str(behind), "--bind", "127.0.0.1", "-d", pages]
    origin = stage.server("http.server", http, port=behind, stop=signal.SIGTERM)
    proxy = stage.server("haproxy", ["haproxy", "-db", "-f", stage.dir / "haproxy.cfg"], port=port)
    base = f"http://127.0.0.1:{port}"
    many = stage.client("curl", ["curl", "-sS", f"{base}/small?[1-50]"]).out
    large = stage.client("curl", ["curl", "-sS", f"{base}/big?[1-8]"]).out
    missing = stage.client("curl", ["curl", "-sS", "-o", "-", f"{base}/absent"]).out
    stage.stop(proxy)
    stage.stop(origin)
    assert many == b"hello\n" * 50
    assert large == BIG * 8
    return [hashlib.sha256(body).hexdigest() for body in (many, large, missing)]


@placements()
def test_proxy(ladder, placement):
    """Pages through the proxy are those of plain TCP."""
    check(ladder, "haproxy", proxied, placement, chain=True)
