//! The table of suites, cheapest first.

/// How much of the ladder a run plays; each plays what those before it play.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Extent {
    /// `--quick`: the inner loop.
    Quick,
    /// What `tests/left-to-whole.txt` does not list, of the suites that are not marked [`whole`].
    #[default]
    Gate,
    /// `--whole`: everything but what `tests/left-out.txt` lists.
    Whole,
}

impl Extent {
    /// What `--list` shows.
    pub(super) fn mark(self) -> &'static str {
        match self {
            Self::Quick => "quick",
            Self::Gate => "",
            Self::Whole => "whole",
        }
    }
}

/// How a suite is run and how its results are read.
#[derive(Debug, Clone, Copy)]
pub(super) enum Kind {
    /// `cargo ARGS`, with arguments for libtest behind a `--`; libtest's lines are counted.
    Cargo(&'static [&'static str]),
    /// `xtask NAME`; its closing lines are counted.
    Checks(&'static str),
    /// `xtask NAME`, which runs cargo tests; libtest's lines are counted.
    Tests(&'static str),
    /// pytest on files or folders, with nothing beside it; `tests/conftest.py` records the results.
    Pytest(&'static str),
    /// The same in so many parts, beside parts of other suites, because tests sleep most of their time;
    /// then those with the marker `alone` by themselves.
    Parts(&'static str, u32),
}

/// One row of the ladder.
#[derive(Debug)]
pub(super) struct Suite {
    /// What `--only` takes.
    pub(super) name: &'static str,
    /// One line for people.
    pub(super) about: &'static str,
    /// The least extent of a run that plays it; in the inner loop only the tests marked `quick`.
    pub(super) from: Extent,
    /// How to run it.
    pub(super) kind: Kind,
    /// Programs that must be installed; without them the suite is skipped.
    pub(super) programs: &'static [&'static str],
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
    pub(super) fn paths(&self) -> impl Iterator<Item = &'static str> {
        let paths = match self.kind {
            Kind::Pytest(paths) | Kind::Parts(paths, _) => paths,
            Kind::Cargo(_) | Kind::Checks(_) | Kind::Tests(_) => "",
        };
        paths.split_whitespace()
    }

    /// The number of parts that are played beside those of other suites; 0: it is played by itself.
    pub(super) fn parts(&self) -> u32 {
        match self.kind {
            Kind::Parts(_, parts) => parts,
            _ => 0,
        }
    }

    /// True if one of its tests can be run by itself.
    pub(super) fn runs_tests_alone(&self) -> bool {
        matches!(self.kind, Kind::Cargo(_)) || self.paths().next().is_some()
    }
}

const fn app(
    name: &'static str,
    about: &'static str,
    path: &'static str,
    programs: &'static [&'static str],
) -> Suite {
    Suite { name, about, from: Extent::Gate, kind: Kind::Parts(path, 1), programs }
}

/// For a suite that takes longer than others.
const fn side_by_side(parts: u32, suite: Suite) -> Suite {
    match suite.kind {
        Kind::Parts(path, _) => Suite { kind: Kind::Parts(path, parts), ..suite },
        _ => suite,
    }
}

/// For a suite that looks at all of the machine.
const fn by_itself(suite: Suite) -> Suite {
    match suite.kind {
        Kind::Parts(path, _) => Suite { kind: Kind::Pytest(path), ..suite },
        _ => suite,
    }
}

const fn quick(suite: Suite) -> Suite {
    Suite { from: Extent::Quick, ..suite }
}

/// For a suite that costs much and holds what others hold, too.
const fn whole(suite: Suite) -> Suite {
    Suite { from: Extent::Whole, ..suite }
}

/// Every suite. `xtask tidy` fails if a test file under `tests/` is in none of them.
pub(super) const SUITES: &[Suite] = &[
    Suite {
        name: "tidy",
        about: "formatting, lints, crate directions, words, unsafe, module docs",
        from: Extent::Quick,
        kind: Kind::Checks("tidy"),
        programs: &["git"],
    },
    Suite {
        name: "unit",
        about: "unit tests, pair stories, simulation and fabric conformance of all crates",
        from: Extent::Quick,
        // Models run as a suite of their own, in a build that explores more of them in less time.
        kind: Kind::Cargo(&["test", "--no-fail-fast", "--", "--skip", "model::"]),
        programs: &[],
    },
    Suite {
        name: "models",
        about: "models of arm words, doorbell page, ring, lock, lanes and rendezvous, and weakened twins",
        from: Extent::Gate,
        kind: Kind::Tests("models"),
        programs: &[],
    },
    Suite {
        name: "miri",
        about: "the shared-memory crates under Miri",
        from: Extent::Whole,
        kind: Kind::Tests("miri"),
        programs: &["rustup"],
    },
    Suite {
        name: "abi",
        about: "what libsdp.so exports, imports and relocates",
        from: Extent::Quick,
        kind: Kind::Checks("abi"),
        programs: &["readelf", "objdump"],
    },
    quick(side_by_side(
        3,
        app(
            "abi-hooks",
            "what libc promises, call by call, with and without the library",
            "tests/abi/test_hooks.py",
            &["cc"],
        ),
    )),
    quick(by_itself(app(
        "tools",
        "sdp and sdpnetstat, rule file, log and environment, against the real library",
        "tests/tools",
        &[],
    ))),
    by_itself(app(
        "packages",
        "packages made twice, installed, used and removed in a root of their own; a whole root preloaded; walk-throughs",
        "tests/packages",
        &[
            "dpkg-deb", "rpmbuild", "man", "bash", "zsh", "fish", "unshare", "strace", "sudo",
            "cron", "sshd", "xinetd", "telnet", "lsof", "psql", "NPtcp", "iperf", "sockperf",
        ],
    )),
    quick(app(
        "app-redis",
        "redis-server, redis-benchmark, redis-cli, BGSAVE under load",
        "tests/apps/test_redis.py",
        &["redis-server", "redis-benchmark", "redis-cli"],
    )),
    app(
        "app-postgres",
        "PostgreSQL: psql, COPY, pgbench, cancel, restart of workers",
        "tests/apps/test_postgres.py",
        &["psql"],
    ),
    app(
        "app-nginx",
        "nginx: workers, sendfile, keep-alive, reload; curl and wrk",
        "tests/apps/test_nginx.py",
        &["nginx", "curl", "wrk"],
    ),
    app(
        "app-apache",
        "Apache prefork: keep-alive, a request per connection, CGI, graceful restart; curl and ab",
        "tests/apps/test_apache.py",
        &["apache2", "ab", "curl"],
    ),
    whole(app(
        "app-gunicorn",
        "Gunicorn: sync and threaded workers, uploads, sendfile, reload",
        "tests/apps/test_gunicorn.py",
        &["gunicorn", "ab", "curl"],
    )),
    whole(app(
        "app-php-fpm",
        "PHP-FPM behind nginx, FastCGI connections kept and not",
        "tests/apps/test_php_fpm.py",
        &["php-fpm8.2", "nginx", "curl"],
    )),
    app(
        "app-forking",
        "a server in C that forks for each connection",
        "tests/apps/test_forking.py",
        &["cc"],
    ),
    whole(app(
        "app-stress-ng",
        "stress-ng: sockets and descriptors, with its own verification",
        "tests/apps/test_stress_ng.py",
        &["stress-ng"],
    )),
    app(
        "app-memcached",
        "memcached with its threads, Python client",
        "tests/apps/test_memcached.py",
        &["memcached"],
    ),
    app(
        "app-haproxy",
        "haproxy in front of a Python server",
        "tests/apps/test_haproxy.py",
        &["haproxy", "curl"],
    ),
    app(
        "app-xinetd",
        "xinetd: internal echo, cat, static cat, shell; telnet",
        "tests/apps/test_xinetd.py",
        &["xinetd", "telnet", "busybox"],
    ),
    app(
        "app-sshd",
        "sshd with its sandbox, scp of 20 MB, ssh with a pipe",
        "tests/apps/test_sshd.py",
        &["sshd", "scp", "ssh-keygen"],
    ),
    quick(app(
        "app-netpipe",
        "NetPIPE with integrity mode",
        "tests/apps/test_netpipe.py",
        &["NPtcp"],
    )),
    app(
        "app-iperf3",
        "iperf3: forward, reverse, parallel, both ways",
        "tests/apps/test_iperf3.py",
        &["iperf3"],
    ),
    whole(app(
        "app-iperf2",
        "iperf 2: 1, 2, 4 and 8 connections",
        "tests/apps/test_iperf2.py",
        &["iperf"],
    )),
    whole(app(
        "app-sockperf",
        "sockperf: ping-pong and throughput with data integrity",
        "tests/apps/test_sockperf.py",
        &["sockperf"],
    )),
    whole(app(
        "app-qperf",
        "qperf: sdp_lat and sdp_bw, which ask for AF_INET_SDP, against tcp_lat and tcp_bw",
        "tests/apps/test_qperf.py",
        &["qperf"],
    )),
    whole(app(
        "app-java",
        "Java: NIO selector and blocking echo",
        "tests/apps/test_java.py",
        &["java", "javac"],
    )),
    whole(app(
        "app-java-sdp",
        "Java: com.sun.sdp.conf; JDBC to PostgreSQL and MariaDB beside a connection kept on TCP",
        "tests/apps/test_java_sdp.py",
        &["java", "javac", "psql", "mariadbd"],
    )),
    whole(app(
        "app-node",
        "Node: streams, io_uring on and off; HTTP with large responses",
        "tests/apps/test_node.py",
        &["node", "curl"],
    )),
    quick(app(
        "app-python",
        "Python: sockets, asyncio, multiprocessing",
        "tests/apps/test_python.py",
        &[],
    )),
    whole(app(
        "app-go",
        "a static Go program at one end, the other preloaded",
        "tests/apps/test_go.py",
        &["go"],
    )),
    app("app-bash", "bash /dev/tcp", "tests/apps/test_bash.py", &["bash"]),
    quick(app(
        "oracle",
        "a byte-stream oracle: calls and sizes by seed, with lanes that flip and without",
        "tests/oracle/test_oracle.py",
        &[],
    )),
    side_by_side(
        2,
        app(
            "oracle-hosts",
            "the same between two hosts: queue pairs break, roads end, devices go",
            "tests/oracle/test_between.py",
            &[],
        ),
    ),
    side_by_side(
        3,
        app(
            "faults",
            "peers that die, descriptors that change hands, forged memory, limits, hostile users",
            "tests/faults",
            &["cc"],
        ),
    ),
    side_by_side(
        2,
        app(
            "runtimes",
            "other ways to a socket: syscall, plug-ins, io_uring, musl; sandboxes, dropped privileges",
            "tests/runtimes/test_confined.py tests/runtimes/test_musl.py tests/runtimes/test_seccomp.py \
             tests/runtimes/test_ways.py",
            &["cc", "musl-gcc"],
        ),
    ),
    whole(app(
        "runtimes-fetched",
        "uvloop, Netty, JNI",
        "tests/runtimes/test_java.py tests/runtimes/test_uvloop.py",
        &["cc", "java", "javac", "mvn"],
    )),
    app(
        "services",
        "units of the distribution under a systemd of their own; containers of crun",
        "tests/services",
        &["systemctl", "unshare", "nsenter", "setpriv", "redis-server", "redis-benchmark"],
    ),
    app(
        "chaos",
        "random deaths, stops and shortages under load, thousands of connections, by seed",
        "tests/chaos",
        &[],
    ),
    app(
        "nfs",
        "NFS over RDMA in a guest: the kernel's client through the gateway, its server behind it",
        "tests/nfs",
        &["qemu-system-x86_64", "busybox", "depmod", "dpkg-deb", "apt-get"],
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
    ),
    side_by_side(
        5,
        app(
            "cpython",
            "CPython's own tests of sockets and processes: as they are, and with lanes that flip at random",
            "tests/cpython/test_cpython.py",
            &[],
        ),
    ),
    whole(side_by_side(
        2,
        app(
            "thirdparty",
            "suites of Twisted, tornado, gevent, trio, tokio, libuv and libevent, likewise",
            "tests/thirdparty/test_thirdparty.py",
            &["cmake", "make", "cc", "cargo"],
        ),
    )),
];
