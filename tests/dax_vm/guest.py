"""One virtual machine: booted, given orders through a shared folder, always reaped."""

from __future__ import annotations

import shlex
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType

from .initramfs import initramfs
from .packages import EMULATOR, Parts

GUEST_MIB = 1024
BOOT_S = {"kvm": 15.0, "tcg": 120.0}


class GuestError(Exception):
    """A guest that did not do what it was told, and what it said last."""


def put(order: Path, text: str) -> None:
    """Whole, or not there."""
    draft = order.with_suffix(".draft")
    draft.write_text(text)
    draft.rename(order)


class Job:
    """A command that a guest runs in the background."""

    def __init__(self, guest: Guest, order: Path, command: str, deadline_s: float) -> None:
        self._guest, self._order, self._command = guest, order, command
        self._end = time.monotonic() + deadline_s

    @property
    def output(self) -> str:
        """So far."""
        path = self._order.with_suffix(".out")
        return path.read_text(errors="replace") if path.exists() else ""

    def wait(self, expect: int = 0) -> str:
        """The command's output; raises GuestError if its exit code is not the one expected."""
        code = self._order.with_suffix(".rc")
        self._guest.until(code.exists, self._end, f"finish in time: {self._command}\n{self.output}")
        if int(code.read_text()) != expect:
            raise GuestError(
                f"{self._guest.name}: exit code {code.read_text().strip()}, not {expect}, of: {self._command}\n"
                f"{self.output}"
            )
        return self.output


class Guest:
    """Boots when made; as a context manager it is gone at the end of the block, whatever happens.

    It sees the host's ``/`` read-only, with a layer of its own in its memory, and what ``hardware`` says: QEMU's
    options for the machine, its processor, its memory and the shared devices.
    """

    def __init__(self, name: str, parts: Parts, hardware: Sequence[str], *, accelerator: str, folder: Path) -> None:
        self.name = name
        self.orders = folder / f"{name}-orders"
        self.orders.mkdir()
        self._console = folder / f"{name}-console"
        self._jobs = 0
        self._accelerator = accelerator
        archive = folder / f"{name}-initramfs"
        archive.write_bytes(initramfs(parts))
        with self._console.open("wb") as console:
            self._process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", *self._machine(parts.kernel, archive, hardware)],
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is for the script, which then ends its guests
            )

    def _machine(self, kernel: Path, archive: Path, hardware: Sequence[str]) -> list[str]:
        command = [EMULATOR, "-nodefaults", "-no-user-config", "-display", "none", "-serial", "stdio", "-no-reboot"]
        # With one possible CPU, software emulation makes atomics and fences those of one CPU: lost between guests.
        command += ["-smp", "1,maxcpus=2"]
        command += ["-accel", self._accelerator + (",thread=multi" if self._accelerator == "tcg" else "")]
        command += ["-kernel", str(kernel), "-initrd", str(archive), "-append", "console=ttyS0 panic=-1 quiet"]
        share = "local,security_model=none,multidevs=remap"
        command += ["-virtfs", f"{share},path=/,mount_tag=host,readonly=on"]
        command += ["-virtfs", f"{share},path={self.orders},mount_tag=orders", *hardware]
        return command

    def boot(self) -> float:
        """Waits until commands can be run; the seconds since it was called."""
        start, deadline_s = time.monotonic(), BOOT_S[self._accelerator]
        hello = self.orders / f"{self._jobs}.rc"
        self.start(["true"], deadline_s=deadline_s)
        self.until(hello.exists, start + deadline_s, f"reach user space in {deadline_s:.0f} s")
        return time.monotonic() - start

    def start(
        self, command: Sequence[str], *, deadline_s: float, env: Mapping[str, str] | None = None, cwd: Path = Path("/")
    ) -> Job:
        """Runs ``command`` in the guest, in an environment of nothing but ``env`` and a search path."""
        words = ["env", *(f"{name}={value}" for name, value in (env or {}).items()), *command]
        order = self.orders / f"{self._jobs}.sh"
        self._jobs += 1
        put(order, f"cd {shlex.quote(str(cwd))} && exec {shlex.join(words)}\n")
        return Job(self, order, shlex.join(words), deadline_s)

    def run(self, command: Sequence[str], *, deadline_s: float = 60.0, cwd: Path = Path("/"), expect: int = 0) -> str:
        return self.start(command, deadline_s=deadline_s, cwd=cwd).wait(expect)

    def until(self, holds: Callable[[], bool], end: float, what: str) -> None:
        while not holds():
            if self._process.poll() is not None:
                raise GuestError(f"{self.name} ended with code {self._process.returncode}{self._last_words()}")
            if time.monotonic() > end:
                raise GuestError(f"{self.name} did not {what}{self._last_words()}")
            time.sleep(0.02)

    def _last_words(self) -> str:
        return "\n" + self._console.read_text(errors="replace")[-2000:].strip()

    def __enter__(self) -> Guest:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
