"""What is checked between two guests that are up: each check tells what it saw, or raises GuestError."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from .guest import Guest, GuestError, Job, put

CHECKOUT = Path(__file__).resolve().parents[2]
COLLECTIVES = ["broadcast", "scatter", "gather", "all_gather", "all_reduce", "reduce_scatter", "reduce", "all_to_all"]
LITMUS = ["MP", "SB", "CoRR", "MP-nt", "SB-noinv"]
DEADLINE_S = 240.0  # an emulated CPU takes long even to start Python


class Host:
    """A guest in which cxlemu runs, and its devices, under the names that it gave them."""

    def __init__(self, guest: Guest, devices: Sequence[str], deadline_s: float = DEADLINE_S) -> None:
        self.guest, self.devices = guest, devices
        self._orders = guest.orders / "cxlemu"
        self._orders.mkdir()
        self._commands, self._deadline_s = 0, deadline_s
        server = [sys.executable, "-m", "tests.dax_vm.orders", "/orders/cxlemu"]
        self._server = guest.start(server, cwd=CHECKOUT, deadline_s=deadline_s)

    def start(
        self, *arguments: str, environment: Mapping[str, str] | None = None, devices: Sequence[str] | None = None
    ) -> Job:
        """cxlemu with these arguments and devices; all, without."""
        options = [word for device in (self.devices if devices is None else devices) for word in ("--device", device)]
        order = self._orders / f"{self._commands}.json"
        self._commands += 1
        command = [*arguments, *options]
        put(order, json.dumps({"arguments": command, "environment": dict(environment or {})}))
        return Job(self.guest, order, f"cxlemu {shlex.join(command)}\n{self._server.output}", self._deadline_s)

    def cxlemu(self, *arguments: str, devices: Sequence[str] | None = None, expect: int = 0) -> str:
        return self.start(*arguments, devices=devices).wait(expect)

    def first_bytes(self, write: bytes = b"", device: str = "") -> str:
        """Of the first device, or another one, through a mapping; ``write`` is stored there before."""
        program = f"""import mmap, os
with mmap.mmap(os.open({device or self.devices[0]!r}, os.O_RDWR), 2 << 20) as card:
    card[:{len(write)}] = {write!r}
    print(card[:8])"""
        return self.guest.run([sys.executable, "-c", program]).strip()


def all_checks(a: Host, b: Host, programs: Path) -> Iterator[str]:
    yield no_shared_memory(a, b)
    yield programs_of_others(a, b, programs)
    yield foreign_data_is_kept(a)
    yield one_pool_under_other_names(a, b)
    yield collectives([a, b], "reference", [32, 1024, 32768, 1048576])
    yield collectives([a, b], "native", [32, 1024, 32768, 1048576])
    yield collectives([a, b, a, b], "native", [32768])
    yield litmus([a, b])
    yield two_pools_are_refused(a, b)


def no_shared_memory(a: Host, b: Host) -> str:
    """Each has its own kernel and nothing to share but the cards."""
    boots = {host.guest.run(["sh", "-c", "cat /proc/sys/kernel/random/boot_id; ! test -e /dev/shm"]) for host in (a, b)}
    if len(boots) != 2:
        raise GuestError(f"these are not two kernels: {boots}")
    return "two kernels, no /dev/shm in either"


def build_programs(into: Path) -> Path:
    """Compile the example of a queue, right and with its bug, into a new folder that guests will see."""
    into.mkdir()
    source = str(CHECKOUT / "examples/programs/queue.c")
    for name, flags in (("right", []), ("wrong", ["-DBUG"])):
        words = [sys.executable, "-m", "cxlemu", "cc", "-O2", *flags, source, "-o", str(into / name)]
        subprocess.run(words, check=True, timeout=DEADLINE_S)
    return into


def programs_of_others(a: Host, b: Host, programs: Path) -> str:
    """A queue between the guests, on their device itself; `exec` finds its bug on the pool that stands for the device.

    That pool answers system calls as the device does. While `exec` runs there is a /dev/shm, where it keeps its run.
    """
    device = a.devices[0]
    mark = a.first_bytes(write=b"A QUEUE!")
    its_other_name = next(name for name in b.devices if b.first_bytes(device=name) == mark)
    a.first_bytes(write=bytes(4096))
    queue = str(programs / "right")
    ends = [(a, [queue, "send", device]), (b, [queue, "receive", its_other_name])]
    for job in [host.guest.start(words, deadline_s=DEADLINE_S) for host, words in ends]:
        job.wait()
    held = a.first_bytes()
    a.guest.run(["sh", "-c", "mkdir /dev/shm && mount -t tmpfs none /dev/shm"])
    asked = [sys.executable, str(CHECKOUT / "tests/faults/programs/device.py"), device]
    real, emulated = a.guest.run(asked), exec_on(a, asked, expect=3)  # it maps, and touches no line
    if real not in emulated:
        raise GuestError(f"{device} answers {real!r}, and the pool that stands for it {emulated!r}")
    said = exec_on(a, [queue, "send", device, ":", queue, "receive", device])
    wrong = str(programs / "wrong")
    found = exec_on(a, [wrong, "send", device, ":", wrong, "receive", device], expect=1)
    if "not-flushed: " not in found or a.first_bytes() != held:
        raise GuestError(f"exec did not name the missing flush, or changed {device}: {found}")
    a.guest.run(["sh", "-c", "umount /dev/shm && rmdir /dev/shm"])
    answers = len(real.splitlines())
    return f"programs: a queue between the guests; {answers} answers of {device} are those of exec; {last_line(said)}"


def exec_on(a: Host, words: Sequence[str], expect: int = 0) -> str:
    """One run, on a pool of the size of the first device."""
    options = ["--pool", a.devices[0], "--seeds", "1", "--no-worst-case", "--no-shrink"]
    return a.cxlemu("exec", *options, "--", *words, devices=[], expect=expect)


def foreign_data_is_kept(a: Host) -> str:
    """`pool format` has nobody to ask here, so it must refuse."""
    a.first_bytes(write=b"SOMEBODY")
    said = a.cxlemu("pool", "format", devices=a.devices[:1], expect=2)
    if a.first_bytes() != "b'SOMEBODY'":
        raise GuestError(f"pool format refused, and yet wrote: {a.first_bytes()}")
    return f"foreign data: {last_line(said)}"


def one_pool_under_other_names(a: Host, b: Host) -> str:
    """The second host finds the pool that the first made, and its cards behind other names."""
    said = a.cxlemu("pool", "format", "--yes")
    shows = [host.start("pool", "show", "--json", "-") for host in (a, b)]
    facts = [json.loads(show.wait()) for show in shows]
    cards = [{each["card"]: each["path"] for each in host} for host in facts]
    pools = {each["uuid"] for host in facts for each in host}
    kinds = {each["kind"] for host in facts for each in host}
    if len(pools) != 1 or kinds != {"device-DAX"} or [len(each) for each in cards] != [len(a.devices)] * 2:
        raise GuestError(f"the two hosts do not see one pool on devices: {facts}")
    if cards[0] == cards[1]:
        raise GuestError(f"both hosts have the same names for the cards, which tests less than it should: {cards}")
    return f"{last_line(said)}; card 0 is {cards[0][0]} for one host and {cards[1][0]} for the other"


def collectives(hosts: Sequence[Host], engine: str, sizes: Sequence[int]) -> str:
    """All eight, one rank for each of ``hosts``, which meet over the pool and nothing else."""
    arguments = ["run", "--launch", "env", "--backend", "dax", "--engine", engine, "--json", "/tmp/result.json"]
    arguments += ["-b", str(sizes[0]), "-e", str(sizes[-1]), "--iters", "1"]
    arguments += ["-f", "32"] if len(sizes) > 1 else []
    arguments += ["--deadline-s", str(DEADLINE_S / 3)]
    places = [{"RANK": str(rank), "WORLD_SIZE": str(len(hosts))} for rank in range(len(hosts))]
    jobs = [host.start(*arguments, environment=place) for host, place in zip(hosts, places, strict=True)]
    try:
        said = [job.wait() for job in jobs]
    except GuestError as error:
        others = "\n".join(f"rank {rank} said:\n{job.output}" for rank, job in enumerate(jobs))
        raise GuestError(f"{error}\n{others}") from None
    result = json.loads(hosts[0].guest.run(["cat", "/tmp/result.json"]))
    seen = sorted((row["collective"], row["size_bytes"], row["wrong"]) for row in result["rows"])
    if seen != sorted((collective, size, 0) for collective in COLLECTIVES for size in sizes):
        raise GuestError(f"not every collective in every size is right: {seen}")
    reached = next(line for line in said[0].splitlines() if line.startswith("# memory"))
    return f"{len(hosts)} ranks, {engine} engine: {last_line(said[0])[2:]}; {reached[2:]}"


def litmus(hosts: Sequence[Host]) -> str:
    """A few litmus tests as machine instructions, a host of the test on each guest: none ends as none may."""
    tests = [str(CHECKOUT / f"tests/faults/litmus/{name}.yaml") for name in LITMUS]
    arguments = ["litmus", *tests, "--backend", "dax", "--launch", "env", "--json", "/tmp/litmus.json"]
    arguments += ["--rounds", "100000", "--budget", "1", "--deadline-s", str(DEADLINE_S / 3)]
    places = [{"RANK": str(rank), "WORLD_SIZE": str(len(hosts))} for rank in range(len(hosts))]
    jobs = [host.start(*arguments, environment=place) for host, place in zip(hosts, places, strict=True)]
    said = [job.wait() for job in jobs]
    document = json.loads(hosts[0].guest.run(["cat", "/tmp/litmus.json"]))
    rows = {row["name"]: row["rounds"] for row in document["rows"] if row["verdict"] == "ok"}
    if document["verdict"] != "ok" or set(rows) != set(LITMUS) or not all(rows.values()):
        raise GuestError(f"not every litmus test was run and ended as it may: {document}")
    return f"litmus: {last_line(said[0])}"


def two_pools_are_refused(a: Host, b: Host) -> str:
    """The second host makes a pool of its own of some of the cards, which the first is told."""
    some = len(b.devices) // 2
    b.cxlemu("pool", "format", "--yes", devices=b.devices[:some])
    said = last_line(a.cxlemu("run", "--backend", "dax", expect=2))
    if "belongs to pool" not in said:
        raise GuestError(f"cards of two pools: {said}")
    return f"two pools: {said}"


def last_line(text: str) -> str:
    return text.strip().splitlines()[-1]
