"""The guests themselves: what a test reports of them is true."""

import pytest

from machines.guest import Guest, GuestDied


def test_status_and_output_are_the_commands(pair):
    """Of both machines, and of the right one."""
    print(f"boot: {pair.a.boot_s:.1f} s and {pair.b.boot_s:.1f} s")
    for guest in (pair.a, pair.b):
        done = guest.run("hostname; echo wrong >&2; exit 7", ok=(7,))
        assert (done.out, done.err) == (guest.name.encode() + b"\n", b"wrong\n")
        assert guest.run("no-such-program", ok=None).status == 127


def test_a_limit_holds(pair):
    """A command that does not end is a failure, and the guest still serves."""
    sleeper = pair.a.start("exec sleep 600")
    with pytest.raises(TimeoutError):
        sleeper.wait(1)
    pair.a.run("pkill -x sleep")
    assert sleeper.wait().status == 143


def test_what_a_guest_writes_is_lost(pair, tmp_path):
    """This machine's files cannot be changed from a guest."""
    (tmp_path / "file").write_text("mine", encoding="utf-8")
    pair.a.run(f"echo other >{tmp_path}/file; rm -f {tmp_path}/file")
    assert (tmp_path / "file").read_text(encoding="utf-8") == "mine"


def test_a_panic_is_a_failure_not_a_wait(kernel):
    """A guest that crashes ends its commands, with the kernel's words."""
    guest = Guest(kernel, soft_roce=False)
    try:
        guest.wait_up()
        with pytest.raises(GuestDied, match="sysrq"):
            guest.run("echo c >/proc/sysrq-trigger; sleep 600", limit_s=60)
    finally:
        guest.close()


def test_the_wire_carries_rdma(pair):
    """A connection of the kernel's connection manager, verbs, and data, from one machine to the other."""
    count = "cat /sys/class/infiniband/rxe0/ports/1/hw_counters/sent_pkts"
    before = int(pair.b.run(count).text)
    server = pair.a.start(["timeout", "60", "rping", "-s", "-a", pair.a.address, "-C", "5"])
    listens = "for i in $(seq 600); do rdma res show cm_id | grep -q LISTEN && exit; sleep 0.1; done; exit 1"
    pair.a.run(listens, limit_s=90)
    asked = ["timeout", "60", "rping", "-c", "-a", pair.a.address, "-C", "5", "-v"]
    done = pair.b.run(asked, limit_s=90, ok=(0, 255))
    assert done.text.count("ping data: rdma-ping-") == 5, done
    # One of rping's threads may ask for an event when the other has closed the channel, behind the last reply.
    assert done.status == 0 or b"rdma_get_cm_event: Bad file descriptor" in done.err, done
    assert server.wait().status == 0
    assert int(pair.b.run(count).text) > before + 5
