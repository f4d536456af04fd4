//! The table of suites, cheapest first.

/// How a suite is run and how its results are read.
#[derive(Debug, Clone, Copy)]
pub(super) enum Kind {
    /// `cargo ARGS`, with arguments for libtest behind a `--`; libtest's lines are counted.
    Cargo(&'static [&'static str]),
    /// `xtask NAME`; its closing lines are counted.
    Checks(&'static str),
    /// `xtask NAME`, which runs cargo tests; libtest's lines are counted.
    Tests(&'static str),
    /// pytest on one file; `tests/conftest.py` records the results.
    Pytest(&'static str),
    /// The same in so many parts side by side, for tests that sleep most of their time; then those
    /// with the marker `alone` by themselves.
    Parts(&'static str, u32),
}

/// One row of the ladder.
#[derive(Debug)]
pub(super) struct Suite {
    /// What `--only` takes.
    pub(super) name: &'static str,
    /// One line for people.
    pub(super) about: &'static str,
    /// Part of `--quick`; of a pytest suite then only the tests marked `quick`.
    pub(super) quick: bool,
    /// How to run it.
    pub(super) kind: Kind,
    /// Programs that must be installed; without them the suite is skipped.
    pub(super) programs: &'static [&'static str],
    /// Seconds after which the suite has failed, on two cores.
    pub(super) limit_s: u64,
}

impl Suite {
    /// True if the built library and tools are tested, not the sources.
    pub(super) fn needs_library(&self) -> bool {
        match self.kind {
            Kind::Cargo(_) | Kind::Tests(_) => false,
            Kind::Checks(name) => name == "abi",
            Kind::Pytest(_) | Kind::Parts(..) => true,
        }
    }

    /// What pytest is to run; nothing if it is another's suite.
    pub(super) fn path(&self) -> Option<&'static str> {
        match self.kind {
            Kind::Pytest(path) | Kind::Parts(path, _) => Some(path),
            Kind::Cargo(_) | Kind::Checks(_) | Kind::Tests(_) => None,
        }
    }

    /// True if one of its tests can be run by itself.
    pub(super) fn runs_tests_alone(&self) -> bool {
        matches!(self.kind, Kind::Cargo(_)) || self.path().is_some()
    }
}

const fn app(
    name: &'static str,
    about: &'static str,
    path: &'static str,
    programs: &'static [&'static str],
    limit_s: u64,
) -> Suite {
    Suite { name, about, quick: false, kind: Kind::Pytest(path), programs, limit_s }
}

/// For a suite that leaves both processors idle most of its time.
const fn side_by_side(parts: u32, suite: Suite) -> Suite {
    match suite.kind {
        Kind::Pytest(path) => Suite { kind: Kind::Parts(path, parts), ..suite },
        _ => suite,
    }
}

const fn quick(suite: Suite) -> Suite {
    Suite { quick: true, ..suite }
}

/// Every suite. `xtask tidy` fails if a test file under `tests/` is in none of them.
pub(super) const SUITES: &[Suite] = &[
    Suite {
        name: "tidy",
        about: "formatting, lints, crate directions, words, unsafe, module docs",
        quick: true,
        kind: Kind::Checks("tidy"),
        programs: &["git"],
        limit_s: 400,
    },
    Suite {
        name: "unit",
        about: "unit tests, pair stories, simulation and fabric conformance of all crates",
        quick: true,
        // Models run as a suite of their own, in a build that explores more of them in less time.
        kind: Kind::Cargo(&["test", "--no-fail-fast", "--", "--skip", "model::"]),
        programs: &[],
        limit_s: 900,
    },
    Suite {
        name: "models",
        about: "models of arm words, doorbell page, ring, lock, lanes and rendezvous, and weakened twins",
        quick: false,
        kind: Kind::Tests("models"),
        programs: &[],
        limit_s: 600,
    },
    Suite {
        name: "miri",
        about: "the shared-memory crates under Miri",
        quick: false,
        kind: Kind::Tests("miri"),
        programs: &["rustup"],
        limit_s: 600,
    },
    Suite {
        name: "abi",
        about: "what libsdp.so exports, imports and relocates",
        quick: true,
        kind: Kind::Checks("abi"),
        programs: &["readelf", "objdump"],
        limit_s: 60,
    },
    quick(side_by_side(
        3,
        app(
            "abi-hooks",
            "what libc promises, call by call, with and without the library",
            "tests/abi/test_hooks.py",
            &["cc"],
            600,
        ),
    )),
    quick(app(
        "tools",
        "sdp and sdpnetstat, rule file, log and environment, against the real library",
        "tests/tools",
        &[],
        200,
    )),
    app(
        "packages",
        "packages made twice, installed, used and removed in a root of their own; a whole root preloaded; walk-throughs",
        "tests/packages",
        &[
            "dpkg-deb", "rpmbuild", "man", "bash", "zsh", "fish", "unshare", "strace", "sudo",
            "cron", "sshd", "xinetd", "telnet", "lsof", "psql", "NPtcp", "iperf", "sockperf",
        ],
        300,
    ),
    quick(app(
        "app-redis",
        "redis-server, redis-benchmark, redis-cli, BGSAVE under load",
        "tests/apps/test_redis.py",
        &["redis-server", "redis-benchmark", "redis-cli"],
        300,
    )),
    app(
        "app-postgres",
        "PostgreSQL: psql, COPY, pgbench, cancel, restart of workers",
        "tests/apps/test_postgres.py",
        &["psql"],
        420,
    ),
    app(
        "app-nginx",
        "nginx: workers, sendfile, keep-alive, reload; curl and wrk",
        "tests/apps/test_nginx.py",
        &["nginx", "curl", "wrk"],
        300,
    ),
    app(
        "app-apache",
        "Apache prefork: keep-alive, a request per connection, CGI, graceful restart; curl and ab",
        "tests/apps/test_apache.py",
        &["apache2", "ab", "curl"],
        300,
    ),
    app(
        "app-gunicorn",
        "Gunicorn: sync and threaded workers, uploads, sendfile, reload",
        "tests/apps/test_gunicorn.py",
        &["gunicorn", "ab", "curl"],
        300,
    ),
    app(
        "app-php-fpm",
        "PHP-FPM behind nginx, FastCGI connections kept and not",
        "tests/apps/test_php_fpm.py",
        &["php-fpm8.2", "nginx", "curl"],
        300,
    ),
    app(
        "app-forking",
        "a server in C that forks for each connection",
        "tests/apps/test_forking.py",
        &["cc"],
        200,
    ),
    app(
        "app-stress-ng",
        "stress-ng: sockets and descriptors, with its own verification",
        "tests/apps/test_stress_ng.py",
        &["stress-ng"],
        300,
    ),
    app(
        "app-memcached",
        "memcached with its threads, Python client",
        "tests/apps/test_memcached.py",
        &["memcached"],
        200,
    ),
    app(
        "app-haproxy",
        "haproxy in front of a Python server",
        "tests/apps/test_haproxy.py",
        &["haproxy", "curl"],
        200,
    ),
    app(
        "app-xinetd",
        "xinetd: internal echo, cat, static cat, shell; telnet",
        "tests/apps/test_xinetd.py",
        &["xinetd", "telnet", "busybox"],
        200,
    ),
    app(
        "app-sshd",
        "sshd with its sandbox, scp of 20 MB, ssh with a pipe",
        "tests/apps/test_sshd.py",
        &["sshd", "scp", "ssh-keygen"],
        300,
    ),
    quick(app(
        "app-netpipe",
        "NetPIPE with integrity mode",
        "tests/apps/test_netpipe.py",
        &["NPtcp"],
        200,
    )),
    app(
        "app-iperf3",
        "iperf3: forward, reverse, parallel, both ways",
        "tests/apps/test_iperf3.py",
        &["iperf3"],
        200,
    ),
    app(
        "app-iperf2",
        "iperf 2: 1, 2, 4 and 8 connections",
        "tests/apps/test_iperf2.py",
        &["iperf"],
        200,
    ),
    app(
        "app-sockperf",
        "sockperf: ping-pong and throughput with data integrity",
        "tests/apps/test_sockperf.py",
        &["sockperf"],
        200,
    ),
    app(
        "app-qperf",
        "qperf: sdp_lat and sdp_bw, which ask for AF_INET_SDP, against tcp_lat and tcp_bw",
        "tests/apps/test_qperf.py",
        &["qperf"],
        200,
    ),
    app(
        "app-java",
        "Java: NIO selector and blocking echo",
        "tests/apps/test_java.py",
        &["java", "javac"],
        300,
    ),
    app(
        "app-java-sdp",
        "Java: com.sun.sdp.conf; JDBC to PostgreSQL and MariaDB beside a connection kept on TCP",
        "tests/apps/test_java_sdp.py",
        &["java", "javac", "psql", "mariadbd"],
        400,
    ),
    app(
        "app-node",
        "Node: streams, io_uring on and off; HTTP with large responses",
        "tests/apps/test_node.py",
        &["node", "curl"],
        200,
    ),
    quick(app(
        "app-python",
        "Python: sockets, asyncio, multiprocessing",
        "tests/apps/test_python.py",
        &[],
        300,
    )),
    app(
        "app-go",
        "a static Go program at one end, the other preloaded",
        "tests/apps/test_go.py",
        &["go"],
        300,
    ),
    app("app-bash", "bash /dev/tcp", "tests/apps/test_bash.py", &["bash"], 120),
    quick(app(
        "oracle",
        "a byte-stream oracle: calls and sizes by seed, with lanes that flip and without",
        "tests/oracle/test_oracle.py",
        &[],
        400,
    )),
    side_by_side(
        2,
        app(
            "oracle-hosts",
            "the same between two hosts: queue pairs break, roads end, devices go",
            "tests/oracle/test_between.py",
            &[],
            300,
        ),
    ),
    side_by_side(
        3,
        app(
            "faults",
            "peers that die, descriptors that change hands, forged memory, limits, hostile users",
            "tests/faults",
            &["cc"],
            900,
        ),
    ),
    app(
        "runtimes",
        "other ways to a socket: syscall, plug-ins, io_uring, uvloop, Netty, JNI; sandboxes, dropped privileges",
        "tests/runtimes",
        &["cc", "musl-gcc", "java", "javac", "mvn"],
        600,
    ),
    app(
        "chaos",
        "random deaths, stops and shortages under load, thousands of connections, by seed",
        "tests/chaos",
        &[],
        600,
    ),
    app(
        "machines",
        "two guests with RDMA devices in software, joined by a wire: programs, reports, tools",
        "tests/machines",
        &[
            "qemu-system-x86_64",
            "busybox",
            "depmod",
            "rping",
            "redis-server",
            "redis-cli",
            "tcpdump",
            "tshark",
        ],
        600,
    ),
    side_by_side(
        5,
        app(
            "cpython",
            "CPython's own tests of sockets and processes: as they are, and with lanes that flip at random",
            "tests/cpython/test_cpython.py",
            &[],
            900,
        ),
    ),
    side_by_side(
        2,
        app(
            "thirdparty",
            "suites of Twisted, tornado, gevent, trio, tokio, libuv and libevent, likewise",
            "tests/thirdparty/test_thirdparty.py",
            &["cmake", "make", "cc", "cargo"],
            900,
        ),
    ),
];
