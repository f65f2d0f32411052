"""Ranks of torch for tests: one process imports torch and forks them, so that a rank costs no import.

results = torch_ranks("tests.collectives.torch.matrix:beside_gloo", ranks=2)
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

TIME_S = 240.0


def torch_ranks(function: str, *arguments: str, ranks: int, **environment: str) -> list[Any]:
    """Run ``MODULE:FUNCTION(rank, ranks, store, *arguments)`` on every rank.

    Returns:
        What each rank returned, through JSON; ``{"died": ...}`` for a rank that was killed or raised.
    """
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", __name__, folder, str(ranks), function, *arguments]
        env = {**os.environ, "OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR", **environment}
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=TIME_S + 30)
        found = [Path(folder, f"{rank}.json") for rank in range(ranks)]
        if done.returncode:
            raise AssertionError(f"{function}: {done.stdout[-4000:]}{done.stderr[-8000:]}")
        return [json.loads(path.read_text()) for path in found]


def main(folder: str, count: str, function: str, *arguments: str) -> None:
    """Fork the ranks, and wait for them: none outlives this process."""
    ranks = int(count)
    import torch.distributed as dist

    import collectives.torch.process_group  # noqa: F401  (before the fork, not in each rank)

    module, _, name = function.partition(":")
    run = getattr(importlib.import_module(module), name)
    children: dict[int, int] = {}
    for rank in range(ranks):
        if (pid := os.fork()) == 0:
            try:
                try:
                    result = run(rank, ranks, dist.FileStore(f"{folder}/store", ranks), *arguments)
                except BaseException:
                    result = {"died": traceback.format_exc()}
                Path(folder, f"{rank}.json").write_text(json.dumps(result))
            finally:
                os._exit(0)
        children[pid] = rank
    end = time.monotonic() + TIME_S
    while children and time.monotonic() < end:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            time.sleep(0.01)
            continue
        rank = children.pop(pid)
        if os.WIFSIGNALED(status):
            Path(folder, f"{rank}.json").write_text(json.dumps({"died": f"signal {os.WTERMSIG(status)}"}))
    for pid, rank in children.items():
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        Path(folder, f"{rank}.json").write_text(json.dumps({"died": f"not done after {TIME_S:g} s"}))


if __name__ == "__main__":
    main(*sys.argv[1:])
