"""What these suites are made from: fetched once, with versions and sums pinned, built in a cache.

The cache is `target/thirdparty`; each part has a stamp that says of what it was made. Packages come by
their registries' own clients (pip, cargo, apt-get), so that mirrors and proxies are obeyed. Without a
network and without the cache the tests that need it fail and say so.
"""

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
from pathlib import Path

HERE = Path(__file__).parent
PYTHON = "/usr/bin/python3.11"
LIMIT_S = 600
# Upstream's own archive inside the distribution's source package; it does not change within a release.
SOURCES = {
    "libuv1": "d79b4b06ef04be85fb890bf39d55942cc64c2e15fd14eaa32dae5dce94485484",
    "libevent": "92e6de1be9ec176428fd2367677e61ceffc2ee1cb119035037a27d346b0403bb",
}
TOKIO_TESTS = [
    "io_async_fd",
    "io_copy_bidirectional",
    "tcp_accept",
    "tcp_connect",
    "tcp_echo",
    "tcp_into_split",
    "tcp_into_std",
    "tcp_peek",
    "tcp_shutdown",
    "tcp_socket",
    "tcp_split",
    "tcp_stream",
]


def run(*argv, cwd=None, env=None):
    """Runs a command to its end; its standard output."""
    done = subprocess.run(
        [str(word) for word in argv],
        cwd=cwd,
        env={**os.environ, **(env or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=LIMIT_S,
        check=False,
    )
    output = (done.stdout + done.stderr).decode(errors="replace")
    assert done.returncode == 0, f"{argv}: exit status {done.returncode}\n{output[-6000:]}"
    return done.stdout.decode(errors="replace")


class Cache:
    """The directory with everything that was fetched and built."""

    def __init__(self, target):
        self.dir = Path(target).resolve() / "thirdparty"
        self.dir.mkdir(parents=True, exist_ok=True)

    def _made(self, name, recipe, make):
        """The directory `name`, made anew unless its stamp has this recipe."""
        place, stamp = self.dir / name, self.dir / name / "stamp"
        wanted = hashlib.sha256(recipe.encode()).hexdigest()
        # Two sessions side by side make it once.
        with open(self.dir / f"{name}.lock", "w", encoding="utf-8") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not stamp.exists() or stamp.read_text() != wanted:
                shutil.rmtree(place, ignore_errors=True)
                place.mkdir()
                make(place)
                stamp.write_text(wanted)
        return place

    def python(self):
        """An interpreter that has the packages of `requirements.txt`."""
        wanted = HERE / "requirements.txt"

        def make(place):
            run(PYTHON, "-m", "venv", place / "venv")
            run(place / "venv/bin/pip", "install", "--quiet", "--no-deps", "--only-binary", ":all:",
                "-r", wanted)

        return self._made("python", wanted.read_text(), make) / "venv/bin/python"

    def source(self, package):
        """The unpacked upstream source of a package of the distribution, in a directory of its own."""
        wanted = SOURCES[package]

        def make(place):
            sources = place / "sources.list.d"
            lists = place / "lists"
            sources.mkdir()
            lists.mkdir()
            for path in Path("/etc/apt/sources.list.d").glob("*.sources"):
                text = path.read_text().replace("Types: deb\n", "Types: deb-src\n")
                (sources / path.name).write_text(text)
            plain = Path("/etc/apt/sources.list")
            if plain.exists():
                lines = plain.read_text().splitlines()
                lines = [line.replace("deb ", "deb-src ", 1) for line in lines]
                (sources / "plain.list").write_text("\n".join(lines) + "\n")
            apt = ["apt-get", "-q", "-o", "Dir::Etc::sourcelist=-", "-o",
                   f"Dir::Etc::sourceparts={sources}", "-o", f"Dir::State::lists={lists}"]
            run(*apt, "update")
            run(*apt, "source", "--download-only", package, cwd=place)
            archive = next(place.glob("*.orig.tar.*z"))
            found = hashlib.sha256(archive.read_bytes()).hexdigest()
            assert found == wanted, f"{archive.name}: sum {found}, expected {wanted}"
            (place / "source").mkdir()
            run("tar", "xf", archive, "-C", place / "source", "--strip-components=1")
            shutil.rmtree(lists)

        return self._made(package, wanted, make) / "source"

    def libuv(self):
        """The program with libuv's tests, libuv itself linked in."""
        source = self.source("libuv1")

        def make(place):
            run("cmake", "-S", source, "-B", place, "-DCMAKE_BUILD_TYPE=Debug",
                "-DLIBUV_BUILD_BENCH=OFF")
            run("make", "-C", place, "-j2", "uv_run_tests_a")

        return self._made("libuv-build", SOURCES["libuv1"], make) / "uv_run_tests_a"

    def libevent(self):
        """The program with libevent's tests."""
        source = self.source("libevent")

        def make(place):
            run("cmake", "-S", source, "-B", place, "-DCMAKE_BUILD_TYPE=Debug",
                "-DEVENT__LIBRARY_TYPE=STATIC", "-DEVENT__DISABLE_OPENSSL=ON",
                "-DEVENT__DISABLE_BENCHMARK=ON", "-DEVENT__DISABLE_SAMPLES=ON")
            run("make", "-C", place, "-j2", "regress")

        return self._made("libevent-build", SOURCES["libevent"], make) / "bin/regress"

    def tokio(self):
        """The programs with tokio's own tests of TCP, by name."""
        recipe = "".join((HERE / "tokio" / name).read_text() for name in ("Cargo.toml", "Cargo.lock"))

        def make(place):
            for name in ("Cargo.toml", "Cargo.lock"):
                shutil.copy(HERE / "tokio" / name, place)
            (place / "src").mkdir()
            (place / "src/lib.rs").write_text("//! Nothing: the tests are all.\n")
            packages = json.loads(
                run("cargo", "metadata", "--locked", "--format-version", "1", cwd=place)
            )["packages"]
            tokio = next(package for package in packages if package["name"] == "tokio")
            upstream = Path(tokio["manifest_path"]).parent / "tests"
            shutil.copytree(upstream / "support", place / "tests/support")
            for name in TOKIO_TESTS:
                shutil.copy(upstream / f"{name}.rs", place / "tests")
            built = run("cargo", "test", "--locked", "--tests", "--no-run", "--message-format", "json",
                        cwd=place, env={"CARGO_TARGET_DIR": str(place / "build")})
            for message in map(json.loads, built.splitlines()):
                if message.get("executable") and message["target"]["kind"] == ["test"]:
                    shutil.copy(message["executable"], place / message["target"]["name"])
            shutil.rmtree(place / "build")

        place = self._made("tokio", recipe + " ".join(TOKIO_TESTS), make)
        return {name: place / name for name in TOKIO_TESTS}
