"""Unmodified servers of the distribution and their clients on two machines: every reply is right, it went over a queue
pair, and the kernels saw no more TCP than the reports say."""

import hashlib
import subprocess
from pathlib import Path

import pytest

from machines.wire import Ends

PROGRAMS = Path("/usr/lib/postgresql/15/bin")
PORT = 7100
NGINX = """
daemon off; master_process on; worker_processes 2; user www-data;
error_log {dir}/error.log; pid {dir}/pid; events {{ worker_connections 64; }}
http {{
    sendfile on; tcp_nopush on; access_log off; keepalive_requests 100000;
    client_body_temp_path {dir}/body; proxy_temp_path {dir}/proxy; fastcgi_temp_path {dir}/fastcgi;
    uwsgi_temp_path {dir}/uwsgi; scgi_temp_path {dir}/scgi;
    server {{ listen {address}:{port}; root {dir}/html; }}
}}
"""


def opened(folder):
    """The folder, which every user of a guest can read."""
    for path in (folder, *folder.parents):
        if str(path).startswith("/tmp/"):
            path.chmod(path.stat().st_mode | 0o055)
    return folder


@pytest.fixture(scope="module", name="cluster")
def _cluster(tmp_path_factory):
    """A database cluster, made here; what a guest writes goes to a copy of its own."""
    data = opened(tmp_path_factory.mktemp("cluster")) / "data"
    data.mkdir()
    subprocess.run(["chown", "postgres", data], check=True)
    words = ["setpriv", "--reuid=postgres", "--regid=postgres", "--init-groups", PROGRAMS / "initdb"]
    words += ["-D", data, "-A", "trust", "-U", "postgres", "-N", "--wal-segsize=1"]
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL, cwd="/")
    with open(data / "pg_hba.conf", "a", encoding="utf-8") as rules:
        rules.write("host all all samenet trust\n")
    return data


@pytest.mark.integrity
def test_postgresql(pair, ladder, cluster):
    """A process for each connection meets by itself: many small queries, and a result of some size."""
    ends = Ends(pair, ladder)
    server = [PROGRAMS / "postgres", "-D", cluster, "-p", PORT, "-k", "/tmp", "-c", f"listen_addresses={pair.a.address}"]
    for setting in ("fsync=off", "max_connections=10", "shared_buffers=8MB", "autovacuum=off"):
        server += ["-c", setting]
    ends.serve(server, "postgres", PORT, stop="INT")
    psql = [PROGRAMS / "psql", "-h", pair.a.address, "-p", PORT, "-U", "postgres", "-X", "-A", "-t", "-q"]
    pair.b.run("{ echo 'create table t (id int primary key, w text);'\n"
               "echo 'insert into t select i, md5(i::text) from generate_series(1, 3000) i;'\n"
               "for i in $(seq 300); do echo \"select w from t where id = $i;\"; done\n"
               "echo 'select id, w from t order by id;'; } >/tmp/script.sql; chmod 644 /tmp/script.sql")
    done, client = ends.ask([*psql, "-f", "/tmp/script.sql", "postgres"])
    word = lambda i: hashlib.md5(b"%d" % i).hexdigest()
    expected = "".join(f"{word(i)}\n" for i in range(1, 301)) + "".join(f"{i}|{word(i)}\n" for i in range(1, 3001))
    assert done.text == expected
    ends.judge(ends.stop(), [client], share=0.15)


@pytest.mark.integrity
def test_nginx(pair, ladder, tmp_path):
    """Workers of another user than the master: many small files on a kept connection, then large ones by sendfile."""
    html = opened(tmp_path) / "html"
    html.mkdir()
    (html / "small").write_text("hello\n")
    big = b"".join(hashlib.sha512(b"%d" % i).digest() for i in range(4_000))
    (html / "big").write_bytes(big)
    opened(html)
    (tmp_path / "conf").write_text(NGINX.format(dir="/tmp/nginx", address=pair.a.address, port=PORT))
    ends = Ends(pair, ladder)
    ends.serve(["nginx", "-c", tmp_path / "conf", "-p", "/tmp/nginx"], None, PORT,
               before=f"mkdir -p /tmp/nginx; ln -sfn {html} /tmp/nginx/html; ")
    base = f"http://{pair.a.address}:{PORT}"
    small, first = ends.ask(["curl", "-sS", f"{base}/small?[1-300]"], user="nobody")
    large, second = ends.ask(["curl", "-sS", f"{base}/small?[1-30]", f"{base}/big?[1-8]"])
    assert small.out == b"hello\n" * 300
    assert large.out == b"hello\n" * 30 + big * 8
    # One that moves small files only is nearly silent on TCP.
    moved = first["bytes"]
    assert moved["sdp_received"] > 4 * moved["tcp_received"], moved
    ends.judge(ends.stop(), [first, second], share=0.1, connections=2)
