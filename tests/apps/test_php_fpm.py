"""PHP-FPM behind nginx: a pool of forked workers that keep their FastCGI connections; curl."""

import hashlib
import signal

from support import check, placements

BIG = b"".join(hashlib.sha512(b"%d" % i).digest() for i in range(16_000))
# Alone on its connection, so that most of it goes its way after the connection has earned a lane.
HUGE = BIG * 16

POOL = """
[global]
error_log = {dir}/fpm.log
pid = {dir}/fpm.pid
daemonize = no
[www]
{user}
listen = 127.0.0.1:{port}
pm = static
; A worker is its connection's for as long as nginx keeps it: more than nginx keeps and clients ask for.
pm.max_children = 6
php_admin_value[post_max_size] = 100M
"""

NGINX = """
daemon off; master_process on; worker_processes 1; {user}
error_log {dir}/error.log; pid {dir}/pid;
events {{ worker_connections 256; }}
http {{
    access_log off; keepalive_requests 1000000; client_max_body_size 100m;
    client_body_temp_path {dir}/body; proxy_temp_path {dir}/proxy;
    fastcgi_temp_path {dir}/fastcgi; uwsgi_temp_path {dir}/uwsgi; scgi_temp_path {dir}/scgi;
    upstream php {{ server 127.0.0.1:{port}; keepalive 2; keepalive_requests 1000000; }}
    server {{
        listen 127.0.0.1:{front};
        location / {{
            fastcgi_pass php; fastcgi_keep_conn {keep}; fastcgi_max_temp_file_size 0;
            fastcgi_param SCRIPT_FILENAME {dir}/index.php;
            fastcgi_param QUERY_STRING $query_string;
            fastcgi_param REQUEST_METHOD $request_method;
            fastcgi_param CONTENT_TYPE $content_type;
            fastcgi_param CONTENT_LENGTH $content_length;
        }}
    }}
}}
"""

SCRIPT = """<?php
switch ($_GET['do']) {
case 'big': readfile(__DIR__ . '/big'); break;
case 'sum': echo hash_file('sha256', 'php://input'), "\\n"; break;
case 'lines': for ($i = 0; $i < 200; $i++) { echo "line $i\\n"; flush(); } break;
case 'word': echo "word\\n"; break;
}
"""


def start(stage, keep, data):
    """Starts PHP-FPM and nginx; (programs, base of the addresses)."""
    (stage.dir / "index.php").write_text(SCRIPT)
    (stage.dir / "big").write_bytes(data)
    port, front = stage.port(), stage.port()
    # Root's masters change the users of their workers, nginx's and PHP's: to the same one, as where they are installed.
    workers = stage.servant("php-fpm")
    pool = POOL.format(dir=stage.dir, port=port,
                       user=f"user = {workers}\ngroup = {workers}" if workers else "")
    (stage.dir / "fpm.conf").write_text(pool)
    argv = ["php-fpm8.2", "-n", "-F", "-y", stage.dir / "fpm.conf"] + ["-R"] * (workers == "root")
    php = stage.server("php-fpm", argv, port=port, user=workers and "root", stop=signal.SIGTERM)
    text = NGINX.format(dir=stage.dir, port=port, front=front, keep=keep,
                        user=f"user {workers};" if workers else "")
    (stage.dir / "nginx.conf").write_text(text)
    argv = ["nginx", "-c", stage.dir / "nginx.conf", "-p", stage.dir]
    nginx = stage.server("nginx", argv, port=front, user=workers and "root", stop=signal.SIGTERM)
    return (nginx, php), f"http://127.0.0.1:{front}"


def scenario(keep, data, times, few):
    """Data as answers and, half as often, uploads; small answers `few` times for each of three clients."""

    def run(stage):
        servers, base = start(stage, keep, data)
        curl = lambda *words, **more: stage.client("curl", ["curl", "-sS", *words], **more).out
        big = curl(f"{base}/?do=big&n=[1-{times}]")
        post = ["-H", "Content-Type: text/plain", "-H", "Expect:", "--data-binary", "@-"]
        summed = curl(*post, f"{base}/?do=sum&n=[1-{times // 2}]", stdin=data)
        lines = curl(f"{base}/?do=lines&n=[1-10]")
        argv = ["curl", "-sS", f"{base}/?do=word&n=[1-{few}]"]
        running = [stage.start("curl", argv) for _ in range(3)]
        words = b"".join(stage.finish(client).out for client in running)
        assert big == data * times
        assert summed.decode() == (hashlib.sha256(data).hexdigest() + "\n") * (times // 2)
        assert lines == b"".join(b"line %d\n" % i for i in range(200)) * 10
        assert words == b"word\n" * 3 * few
        for server in servers:
            stage.stop(server)
        return [hashlib.sha256(part).hexdigest() for part in (big, summed, lines, words)]

    return run


@placements()
def test_kept_connections(ladder, placement):
    """Every answer is that of plain TCP; nginx keeps its connections to the workers."""
    check(ladder, "php-fpm", scenario("on", BIG, 40, 200), placement, chain=True)


@placements()
def test_single_requests(ladder, placement):
    """Likewise with a FastCGI connection for each request."""
    check(ladder, "php-fpm-single", scenario("off", HUGE, 4, 30), placement, chain=True, quiet=False)
