"""Ranks of torch for tests: one process imports torch, once for all tests of a worker, and forks their ranks.

results = torch_ranks("tests.collectives.torch.matrix:beside_gloo", ranks=2)
"""

import atexit
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from functools import cache
from pathlib import Path
from typing import Any

TIME_S = 240.0


def torch_ranks(function: str, *arguments: str, ranks: int, **environment: str) -> list[Any]:
    """Run ``MODULE:FUNCTION(rank, ranks, store, *arguments)`` on every rank; what each returned, through JSON.

    ``{"died": ...}`` stands for a rank that was killed or raised.
    """
    with tempfile.TemporaryDirectory() as folder:
        env = {**os.environ, "OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR", **environment}
        server = started()
        assert server.stdin is not None and server.stdout is not None
        print(json.dumps([env, folder, ranks, function, *arguments]), file=server.stdin, flush=True)
        if (code := server.stdout.readline()) != "0\n":
            raise AssertionError(f"{function}: {code}{Path(folder, 'said').read_text()[-12000:]}")
        return [json.loads(Path(folder, f"{rank}.json").read_text()) for rank in range(ranks)]


@cache
def started() -> subprocess.Popen[str]:
    """The process that has imported torch. It ends with its standard input."""
    server = subprocess.Popen(
        [sys.executable, "-m", __name__],
        env={**os.environ, "OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    atexit.register(server.communicate)
    return server


def serve() -> None:
    """Run each order that comes in a process of its own, which has the order's environment, and answer its code."""
    import collectives.torch.process_group  # noqa: F401  (before the fork, not in each rank)

    for line in sys.stdin:
        if (pid := os.fork()) == 0:
            environment, folder, ranks, function, *arguments = json.loads(line)
            os.environ.clear()
            os.environ.update(environment)
            said = os.open(f"{folder}/said", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            for fd, target in ((os.open(os.devnull, os.O_RDONLY), 0), (said, 1), (said, 2)):
                os.dup2(fd, target)
            try:
                run(folder, ranks, function, *arguments)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)


def run(folder: str, ranks: int, function: str, *arguments: str) -> None:
    """Fork the ranks, and wait for them: none outlives this process."""
    import torch.distributed as dist

    module, _, name = function.partition(":")
    main = getattr(importlib.import_module(module), name)
    children: dict[int, int] = {}
    for rank in range(ranks):
        if (pid := os.fork()) == 0:
            try:
                try:
                    result = main(rank, ranks, dist.FileStore(f"{folder}/store", ranks), *arguments)
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
    serve()
