"""Where /dev/shm is full, `cxlemu exec` says so: it is no failure of the program, and nothing is left there."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.pool_programs import built, on_x86


def in_own_shm(size: str, command: list[str]) -> subprocess.CompletedProcess[str]:
    """Run a command in a mount namespace in which /dev/shm is so large, and list what it leaves there."""
    script = f'mount -t tmpfs -o size={size} tmpfs /dev/shm && {{ "$@"; code=$?; ls -A /dev/shm; exit $code; }}'
    return subprocess.run(
        ["unshare", "-m", "sh", "-c", script, "sh", *command], capture_output=True, text=True, timeout=240, check=False
    )


ROOT = shutil.which("unshare") is not None and os.geteuid() == 0 and in_own_shm("1m", ["true"]).returncode == 0
pytestmark = [*on_x86, pytest.mark.skipif(not ROOT, reason="a /dev/shm of its own takes root, unshare and mount")]
deep = pytest.mark.deep


@pytest.mark.parametrize(
    ("size", "mode", "flags"),
    [
        ("256k", "recompiled", ""),
        ("16m", "recompiled", ""),
        ("16m", "recompiled", "--coherent all"),
        pytest.param("2m", "recompiled", "", marks=deep),
        pytest.param("16m", "preloaded", "", marks=deep),
        ("16m", "preloaded", "--no-check"),
        ("16m", "recompiled", "content"),
    ],
)
def test_room_that_is_missing_is_said(size: str, mode: str, flags: str, tmp_path: Path) -> None:
    its = built(mode, "fills.c")
    pool = "/dev/dax0.0=32M"
    if flags == "content":
        (tmp_path / "content").write_bytes(b"x" * (32 << 20))
        pool, flags = f"/dev/dax0.0={tmp_path / 'content'}", ""
    command = [sys.executable, "-m", "cxlemu", "exec", "--pool", pool, "--seeds", "0", *flags.split()]
    done = in_own_shm(size, [*command, "--", str(its), "/dev/dax0.0"])
    assert done.returncode == 2, done.stdout + done.stderr
    assert "/dev/shm is full: it has" in done.stderr and "--shm-size" in done.stderr
    assert "Traceback" not in done.stderr
    assert [line for line in done.stdout.splitlines() if not line.startswith("#")] == []  # nothing is left there


def test_with_room_it_runs() -> None:
    its = built("recompiled", "fills.c")
    command = [sys.executable, "-m", "cxlemu", "exec", "--pool", "/dev/dax0.0=32M", "--seeds", "1", "--no-worst-case"]
    done = in_own_shm("400m", [*command, "--", str(its), "/dev/dax0.0"])
    assert done.returncode == 1 and "dirty-at-exit" in done.stdout, done.stderr
