"""torch's own tests of a backend, which are in its wheel, on cxl: every test forks its ranks.

    python -m tests.collectives.torch.suite --ranks 4 --json found.json test_broadcast test_all_gather

What stands in the way of a backend that torch does not know is changed here, and nothing else: decorators that name the
backends which they are for (cxl counts as gloo, and as mpi where that alone is said to have a collective for the CPU),
and dist.monitored_barrier, which refuses all but gloo. Tests in needs-gpu.txt are left out.
"""

import argparse
import importlib.util
import json
import os
import sys
import tempfile
import time
import types
import unittest
import warnings
from datetime import timedelta
from pathlib import Path
from typing import Any

NAME = "torch.testing._internal.distributed.distributed_test"
# What torch from 2.14 on makes of a Backend in Python, whatever its Work says: it forwards wait and get_future alone.
COMPLETED = "torch's PyWorkHolder does not ask the Work of a message whether it is completed"
SOURCE = "torch's PyWorkHolder does not ask the Work of a message for its source"
UPSTREAM = {
    **dict.fromkeys(
        ["test_irecv", "test_isend", "test_isend_autograd_profiler", "test_isend_torch_profiler"], COMPLETED
    ),
    **dict.fromkeys(
        [f"test_send_recv_any_source{which}" for which in ("", "_autograd_profiler", "_torch_profiler")], SOURCE
    ),
    "test_ddp_logging_data_cpu": "DDP logs the backend of such a group as 'custom'",
}
NEEDS_GPU = frozenset(Path(__file__).with_name("needs-gpu.txt").read_text().split())


class Counted(str):
    """The name "cxl", which equals those of the backends that it counts as."""

    def __eq__(self, other: object) -> bool:
        return other in ("gloo", "mpi") or str.__eq__(self, other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash("gloo")  # so that it is found in their sets


def load() -> Any:
    """Import torch's tests, for cxl."""
    os.environ |= {"BACKEND": "gloo"}  # which the module checks
    import torch
    from torch.testing._internal import common_distributed

    import collectives.torch.process_group  # noqa: F401  (before the ranks are forked)

    torch.set_num_threads(1)
    for feature in ("ddp", "subgroup", "cuda", "gpu", "plugin"):
        common_distributed.DistTestCases.backend_feature[feature].add("cxl")
    found = importlib.util.find_spec(NAME)
    assert found is not None and found.origin is not None
    source = Path(found.origin).read_text()
    asks = 'BACKEND = os.environ["BACKEND"]'
    assert source.count(asks) == 1
    module = types.ModuleType(NAME)
    module.__dict__.update(__file__=found.origin, Counted=Counted)
    sys.modules[NAME] = module
    code = compile(source.replace(asks, 'BACKEND = Counted("cxl")'), found.origin, "exec", dont_inherit=True)
    exec(code, module.__dict__)
    return module


def let_monitored_barrier_through() -> None:
    """Ask the group, instead of refusing what is not gloo."""
    import torch
    import torch.distributed as dist

    c10d = dist.distributed_c10d
    refusing = c10d.monitored_barrier

    def monitored_barrier(group: Any = None, timeout: Any = None, wait_all_ranks: bool = False) -> Any:
        if c10d._rank_not_in_group(group) or dist.get_backend(group) != "cxl":
            return refusing(group, timeout, wait_all_ranks)
        group = group or c10d._get_default_group()
        if isinstance(timeout, float):
            timeout = timedelta(seconds=timeout)
        behind = type(group) is dist.ProcessGroup
        asked = group._get_backend(torch.device("cpu")) if behind else group
        return asked.monitored_barrier(c10d.default_pg_timeout if timeout is None else timeout, wait_all_ranks)

    c10d.monitored_barrier = dist.monitored_barrier = monitored_barrier


class Found(unittest.TestResult):
    """What became of each test, printed as it ends."""

    def __init__(self, upstream: dict[str, str]) -> None:
        super().__init__()
        self.upstream = upstream  # for each test that torch itself breaks, how
        self.rows: list[dict[str, Any]] = []

    def startTest(self, test: unittest.TestCase) -> None:
        super().startTest(test)
        self.since = time.monotonic()

    def note(self, test: unittest.TestCase, outcome: str, text: str = "") -> None:
        seconds = round(time.monotonic() - self.since, 1)
        self.rows.append({"test": test.id().split(".")[-1], "outcome": outcome, "seconds": seconds, "text": text})
        print(outcome, self.rows[-1]["test"], seconds, text[-3000:] if outcome == "fail" else "", flush=True)

    def addSuccess(self, test: unittest.TestCase) -> None:
        self.note(test, "pass")

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:
        self.note(test, "skip", reason)

    def addFailure(self, test: unittest.TestCase, err: Any) -> None:
        super().addFailure(test, err)
        self.failed(test, self.failures[-1][1])

    def addError(self, test: unittest.TestCase, err: Any) -> None:
        super().addError(test, err)
        self.failed(test, self.errors[-1][1])

    def failed(self, test: unittest.TestCase, text: str) -> None:
        reason = self.upstream.get(test.id().split(".")[-1])
        self.note(test, "upstream" if reason else "fail", reason or text)


def main(names: list[str], ranks: int, shard: str) -> list[dict[str, Any]]:
    """Run these tests, or all that need no GPU; of all in order, shard "K/N" is every N-th from the K-th on."""
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {"TEMP_DIR": folder, "WORLD_SIZE": str(ranks), "OMP_NUM_THREADS": "1"}
        os.environ.setdefault("DISTRIBUTED_TESTS_DEFAULT_TIMEOUT", "300")
        module = load()
        import torch

        let_monitored_barrier_through()

        class Suite(module.TestDistBackend, module.DistributedTest._DistTestBase):  # type: ignore[misc,name-defined]
            def setUp(self) -> None:
                super().setUp()
                self._start_processes(torch.multiprocessing.get_context("fork").Process)

        k, n = map(int, shard.split("/"))
        chosen = (
            names or sorted(name for name in dir(Suite) if name.startswith("test_") and name not in NEEDS_GPU)[k::n]
        )
        from collectives.torch.process_group import group_is_behind

        found = Found(UPSTREAM if group_is_behind() else {})
        unittest.TestSuite(Suite(name) for name in chosen).run(found)
    return found.rows


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="TEST")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--shard", default="0/1", metavar="K/N")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    rows = main(given.names, given.ranks, given.shard)
    counts = {
        outcome: sum(row["outcome"] == outcome for row in rows) for outcome in ("pass", "skip", "upstream", "fail")
    }
    print(counts)
    if given.json:
        given.json.write_text(json.dumps({"ranks": given.ranks, "counts": counts, "rows": rows}, indent=1))
    sys.exit(counts["fail"] > 0)
