"""Packages: the same bytes each time; installed, used and removed without a trace; manual pages and completions
that say what the tools take."""

import hashlib
import json
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from .root import Root, make, one

TOP = Path(__file__).resolve().parents[2]
PAIR = TOP / "tests" / "tools" / "pair.py"
GUIDE = TOP / "tests" / "faults" / "programs" / "guide.c"
LIMIT_S = 120
COMMANDS = ("sdp", "sdpnetstat")
# What `Depends:` in packaging/debian/control says.
NEWEST_GLIBC = (2, 34)

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="installs packages in a root of its own")


@pytest.fixture(name="scratch")
def _scratch():
    with tempfile.TemporaryDirectory(prefix="sdp-packages-") as folder:
        yield Path(folder)


@pytest.fixture(name="root")
def _root(scratch):
    root = Root(scratch)
    try:
        yield root
    finally:
        root.close()


def used(root, *command, **env):
    """Runs the pair in the root and proves that its bytes went over SDP."""
    shutil.copy(PAIR, root.path("/tmp/pair.py"))
    done = root.run(*command, "python3", "/tmp/pair.py", env=env)
    report = json.loads(done.stdout.split("\n", 1)[1])
    assert report["connections"] == {"seen": 2, "sdp": 2, "tcp": 0}, report
    assert report["bytes"]["sdp_sent"] == report["bytes"]["sdp_received"] > 0
    return report


CONVERSION = """
gcc -Wall -Werror /tmp/guide.c -o /tmp/guide
mkfifo /tmp/port
sdp run -- /tmp/guide server >/tmp/port &
read port </tmp/port
sdp run --report - -- /tmp/guide client $port
kill $!
wait
"""


def converted(root):
    """A program that asks for SDP by itself finds the header, and its bytes go over SDP."""
    source = GUIDE.read_text(encoding="utf-8").replace("socket(AF_INET, ", "socket(AF_INET_SDP, ")
    root.path("/tmp/guide.c").write_text("#include <sdp.h>\n" + source, encoding="utf-8")
    lines = root.run("sh", "-c", CONVERSION).stdout
    first, report = lines.split("\n", 1)
    assert first == "2000 lines came back"
    assert json.loads(report)["connections"] == {"seen": 1, "sdp": 1, "tcp": 0}, report


def of_the_packer(name):
    """Files that dpkg, rpm, ldconfig and man write for themselves."""
    return name.startswith(("var/lib/dpkg/", "var/log/dpkg", "var/cache/", "var/lib/rpm/", "root/", "tmp/")) or (
        name in ("etc/ld.so.cache", "etc/ld.so.cache~")
    )


def test_packages_are_the_same_bytes_each_time(packages, scratch):
    """Whenever, under whatever umask and in whatever folder they are made."""
    before = os.umask(0o077)
    try:
        again = make(scratch, TZ="Asia/Tokyo", LC_ALL="C")
    finally:
        os.umask(before)
    digest = lambda path: hashlib.sha256(path.read_bytes()).hexdigest()  # noqa: E731
    assert {n: digest(p) for n, p in again.items()} == {n: digest(p) for n, p in packages.items()}
    assert len(packages) == 3


def test_a_debian_package_comes_and_goes(packages, root):
    """Installed, used, its settings kept; preloaded into the whole root; removed; nothing left."""
    package = root.path("/tmp/sdp.deb")
    shutil.copy(one(packages, ".deb"), package)
    before = root.written()
    root.run("dpkg", "--install", "/tmp/sdp.deb")
    assert root.run("dpkg", "--verify", "sdp").stdout == ""
    assert root.run("sdp", "config", "check").stdout.strip().endswith(
        "2 rules, 0 errors, 0 warnings; what no rule matches gets both"
    )
    used(root, "sdp", "run", "--report", "-", "--")
    converted(root)
    # By its bare name, as the historic library was preloaded.
    assert root.run("true", env={"LD_PRELOAD": "libsdp.so"}).stderr == ""
    assert "libsdp.so" in root.run("ldd", "/bin/true", env={"LD_PRELOAD": "libsdp.so"}).stdout

    rules = root.path("/etc/libsdp.conf")
    rules.write_text("use tcp server * *:*\nuse tcp client * *:*\n", encoding="utf-8")
    root.run("dpkg", "--install", "--force-confold", "/tmp/sdp.deb")
    assert rules.read_text(encoding="utf-8").startswith("use tcp server")
    assert root.run("sdp", "explain", "x", "127.0.0.1:1").stdout.startswith("x connecting to 127.0.0.1:1: tcp")

    preload = root.path("/etc/ld.so.preload")
    preload.write_text("libsdp.so\n", encoding="utf-8")
    assert root.run("sh", "-c", "grep -c libsdp /proc/self/maps").stdout.strip() != "0"
    removed = root.run("dpkg", "--purge", "sdp")
    assert "cannot be preloaded" not in removed.stdout + removed.stderr
    assert root.run("true").stderr == ""
    left = {name for name in root.written() - before if not of_the_packer(name)}
    assert not left, left


def test_other_libraries_stay_preloaded(packages, root):
    """Only ours leaves the list."""
    shutil.copy(one(packages, ".deb"), root.path("/tmp/sdp.deb"))
    root.run("dpkg", "--install", "/tmp/sdp.deb")
    preload = root.path("/etc/ld.so.preload")
    preload.write_text("libdl.so.2 /usr/lib/x86_64-linux-gnu/libsdp.so.1\n", encoding="utf-8")
    root.run("dpkg", "--remove", "sdp")
    assert preload.read_text(encoding="utf-8").split() == ["libdl.so.2"]
    assert root.path("/etc/libsdp.conf").exists(), "a removal that is no purge keeps settings"
    preload.unlink()


def told_of_libc(folder, version):
    """A package without files that says what a root has."""
    folder.mkdir()
    spec = folder / "glibc.spec"
    spec.write_text(f"""Name: glibc
Version: {version}
Release: 1
Summary: What is there
License: none
Provides: /bin/sh, /sbin/ldconfig
%description
What is there.
%files
""", encoding="utf-8")
    build = ["rpmbuild", "-bb", "--quiet", "--define", f"_topdir {folder}", spec]
    subprocess.run(build, check=True, capture_output=True, timeout=LIMIT_S)
    (package,) = folder.glob("RPMS/*/*.rpm")
    return package


def test_an_rpm_comes_and_goes(packages, root, scratch):
    """Likewise. This root is Debian's, and RPM knows nothing of what is in it: a package without files tells it of libc, the
    shell and ldconfig. With an older libc it refuses."""
    shutil.copy(one(packages, ".rpm"), root.path("/tmp/sdp.rpm"))
    found = root.run("getconf", "GNU_LIBC_VERSION").stdout.split()[1]
    assert root.path("/bin/sh").exists() and root.path("/sbin/ldconfig").exists()
    for name, version in (("old", "2.33"), ("glibc", found)):
        shutil.copy(told_of_libc(scratch / name, version), root.path(f"/tmp/{name}.rpm"))
    root.run("rpm", "--initdb")
    before = root.written()
    refused = root.run("sh", "-c", "rpm --install /tmp/old.rpm /tmp/sdp.rpm 2>&1 || echo refused").stdout
    assert "glibc >= 2.34 is needed by sdp" in refused and refused.endswith("refused\n"), refused
    root.run("rpm", "--install", "/tmp/glibc.rpm")
    root.run("rpm", "--install", "/tmp/sdp.rpm")
    used(root, "sdp", "run", "--report", "-", "--")
    root.run("rpm", "--erase", "sdp")
    left = {name for name in root.written() - before if not of_the_packer(name)}
    assert not left, left


def test_a_tarball_works_from_where_it_is(packages, scratch):
    """Unpacked anywhere: the tool finds the library beside itself."""
    subprocess.run(["tar", "-C", scratch, "-xf", one(packages, ".tar.xz")], check=True, timeout=LIMIT_S)
    (top,) = scratch.iterdir()
    report = scratch / "report.json"
    env = {k: v for k, v in os.environ.items() if not k.startswith(("SDP_", "LD_", "LIBSDP_"))}
    subprocess.run(
        [top / "bin/sdp", "run", "--report", report, "--", "python3", PAIR],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=True, timeout=LIMIT_S, env=env,
    )
    assert json.loads(report.read_text(encoding="utf-8"))["connections"]["sdp"] == 2


@pytest.fixture(name="files")
def _files(packages, scratch):
    """The Debian package's files, unpacked."""
    subprocess.run(["dpkg-deb", "--extract", one(packages, ".deb"), scratch / "x"], check=True, timeout=LIMIT_S)
    return scratch / "x"


def described(files):
    """What the packaged tool says of itself, as (words, description) of each command."""
    def flat(tool, above):
        words = [*above, tool["name"]]
        yield words, tool
        for sub in tool["commands"]:
            yield from flat(sub, words)

    text = subprocess.run([files / "usr/bin/sdp", "describe"], capture_output=True, check=True, timeout=LIMIT_S)
    return [each for tool in json.loads(text.stdout)["commands"] for each in flat(tool, [])]


def test_programs_need_what_the_package_says(files):
    """libc and libgcc, nothing else."""
    for name in ("usr/bin/sdp", "usr/bin/sdpnetstat", "usr/lib/x86_64-linux-gnu/libsdp.so.1"):
        out = subprocess.run(["readelf", "-d", files / name], capture_output=True, text=True, check=True).stdout
        needed = set(re.findall(r"\(NEEDED\).*\[(.*)\]", out))
        assert needed <= {"libc.so.6", "libgcc_s.so.1", "ld-linux-x86-64.so.2"}, (name, needed)
        out = subprocess.run(["objdump", "-T", files / name], capture_output=True, text=True, check=True).stdout
        versions = {tuple(map(int, found.split("."))) for found in re.findall(r"GLIBC_([0-9.]+)", out)}
        assert max(versions) <= NEWEST_GLIBC, (name, max(versions))


def test_every_command_has_a_page_that_reads_well(files):
    """A page each, all options in it, no complaint of the formatter."""
    pages = {p.name[:-3]: p for p in files.glob("usr/share/man/man*/*.gz")}
    assert {"libsdp.conf.5", "sdp.7", "sdp.1", "sdpnetstat.8"} <= set(pages)
    plain = {}
    for name, path in pages.items():
        done = subprocess.run(
            ["man", "--warnings", "--encoding=UTF-8", "--local-file", path],
            capture_output=True, text=True, check=True, timeout=LIMIT_S,
            env={"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8", "MANWIDTH": "80"},
        )
        assert done.stderr == "", (name, done.stderr)
        plain[name] = re.sub(r".\x08", "", done.stdout)
        assert max(map(len, plain[name].splitlines())) <= 100, name
    for words, tool in described(files):
        section = 8 if words == ["sdpnetstat"] else 1
        page = plain[f"{'-'.join(words[:2])}.{section}"]
        for option in tool["options"]:
            spelling = f"--{option['long']}" if option["long"] else f"-{option['short']}"
            assert spelling in page, (words, spelling)


def offers(zsh, files, commands):
    """What an interactive zsh offers behind each command and `--`."""
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder) / "found"
        ask = [zsh, "-f", Path(__file__).parent / "programs/offers.zsh", files / "usr/share/zsh/vendor-completions", found]
        lines = "".join(f"{command} --\n" for command in commands)
        subprocess.run(ask, input=lines, check=True, text=True, timeout=LIMIT_S, env={**os.environ, "HOME": folder})
        parts = found.read_text(encoding="utf-8").split("END\n")
    assert len(parts) == len(commands) + 1, parts
    return {command: set(part.split()) for command, part in zip(commands, parts)}


def test_completions_know_every_option(files):
    """Each shell is asked for each command's options."""
    fish = shutil.which("fish")
    zsh = shutil.which("zsh")
    assert fish and zsh, "tests/install-packages installs them"
    for command in COMMANDS:
        script = files / "usr/share/bash-completion/completions" / command
        folder = files / "usr/share/fish/vendor_completions.d"
        by_zsh = offers(zsh, files, [" ".join(words) for words, _ in described(files) if words[0] == command])
        for words, tool in described(files):
            if words[0] != command:
                continue
            line = [*words, "--"]
            quoted = " ".join(f"'{word}'" for word in line)
            ask = f"source {script}; COMP_WORDS=({quoted}); COMP_CWORD={len(words)}; _{command}; echo ${{COMPREPLY[@]}}"
            bash = subprocess.run(["bash", "-c", ask], capture_output=True, text=True, check=True).stdout.split()
            ask = f"source {folder}/{command}.fish; complete -C '{' '.join(line)}'"
            out = subprocess.run(
                [fish, "--no-config", "-c", ask], capture_output=True, text=True, check=True,
                env={"PATH": os.environ["PATH"], "HOME": str(files)},
            ).stdout
            offered = {entry.split("\t")[0] for entry in out.splitlines()}
            for option in tool["options"]:
                if option["long"]:
                    assert f"--{option['long']}" in bash, (words, option, bash)
                    assert any(o.startswith(f"--{option['long']}") for o in offered), (words, option, offered)
                    zsh_offers = by_zsh[" ".join(words)]
                    assert f"--{option['long']}" in zsh_offers, (words, option, zsh_offers)


def test_the_nfs_service_is_what_systemd_takes(files):
    """No word of the unit is unknown, and its settings say what is missing."""
    unit = files / "usr/lib/systemd/system/sdp-nfs-gateway.service"
    text = unit.read_text(encoding="utf-8")
    assert "\nDynamicUser=yes\n" in text and "\nLimitMEMLOCK=infinity\n" in text
    program, rest = re.search(r"^ExecStart=(\S+) (.*)$", text, re.MULTILINE).groups()
    assert (files / program[1:]).exists() and rest == "nfs gateway $OPTIONS"
    settings = files / re.search(r"^EnvironmentFile=/(.*)$", text, re.MULTILINE)[1]
    assert "OPTIONS=" in settings.read_text(encoding="utf-8")
    if shutil.which("systemd-analyze"):
        done = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True, check=False, timeout=LIMIT_S)
        wrong = [line for line in done.stderr.splitlines() if "Unknown" in line or "Failed to parse" in line or "nvalid" in line]
        assert not wrong, wrong
