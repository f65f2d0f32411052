"""Fetches mpi4py's test-suite from the package index, and runs modules of it on the ranks of a world."""

import hashlib
import subprocess
import sys
import tarfile
import tempfile
import unittest
from collections.abc import Iterator
from contextlib import suppress
from fnmatch import fnmatch
from pathlib import Path
from types import ModuleType

from cxlemu import RankContext
from tests.helpers.mpi4py_suite import names

VERSION = "4.1.2"
SHA256 = "56860286dc45f20e8821e93cb06669e30462348bf866f685553fa4b712d58d02"

# Modules that run, and whether they reduce.
MODULES = {
    "test_cco_buf": True,
    "test_cco_nb_buf": True,
    "test_cco_pr_buf": True,
    "test_cco_vec": False,
    "test_cco_nb_vec": False,
    "test_cco_pr_vec": False,
    "test_cco_obj": False,
    "test_msgzero": True,
    "test_p2p_buf": False,
    "test_p2p_buf_matched": False,
    "test_p2p_obj": False,
    "test_p2p_obj_matched": False,
}

# Tests that do not run, as patterns of class.test, by the reason; a pattern that fits no test is an error.
_DERIVED = "derived datatypes: views such as x[::2] and lists of arrays stand for them"
_HANDLES = "about handles of MPI's, which are numbers: null ones, copies, from and to integers"
_SYNCHRONOUS = "no synchronous send: a send is over when its bytes have left"
_CANCEL = "no request is cancelled"
SKIPPED: dict[str, dict[str, str]] = {
    "test_cco_buf": {
        "*.testBcastTypeIndexed": _DERIVED,
        "TestReduceLocal.*": "no reduction without a communicator: NumPy does it",
    },
    "test_cco_nb_buf": {"*.testBcastTypeIndexed": _DERIVED},
    "test_cco_pr_buf": {"*.testBcastTypeIndexed": _DERIVED},
    "test_cco_vec": {"*.testAlltoallwBottom": _DERIVED},
    "test_cco_nb_vec": {"*.testAlltoallwBottom": _DERIVED},
    "test_cco_pr_vec": {"*.testAlltoallwBottom": _DERIVED},
    "test_cco_obj": {
        "*.testAlltoall": "no all-to-all of objects",
        **dict.fromkeys(
            ["*.testReduce", "*.testAllreduce", "*.testScan", "*.testExscan"],
            "no reductions of objects: gather and fold",
        ),
    },
    "test_p2p_buf": {"*.testConstructor": _HANDLES, "*.testProbe": _SYNCHRONOUS, "*.testProbeCancel": _CANCEL},
    "test_p2p_buf_matched": {"TestMessage.*": _HANDLES},
    "test_p2p_obj": {
        **dict.fromkeys(["*.testISSendAndRecv", "*.testManyISSendAndRecv", "*.testProbe"], _SYNCHRONOUS),
        **dict.fromkeys(["*.testTestSomeSend", "*.testWaitSomeSend"], _SYNCHRONOUS),
        "*.testCancel": _CANCEL,
        "*.testCommLock": "about a table inside mpi4py",
        "*.testRecvObjArg": "about a warning of mpi4py's",
    },
    "test_p2p_obj_matched": {"TestMessage.*": _HANDLES},
}

# Modules that do not run, by the reason.
SKIPPED_MODULES: dict[str, str] = {
    **dict.fromkeys(["test_cco_buf_inter", "test_cco_obj_inter", "test_cco_vec_inter"], "no intercommunicators"),
    **dict.fromkeys(["test_comm_inter", "test_dynproc", "test_spawn"], "no intercommunicators, no processes that join"),
    **dict.fromkeys(["test_cco_ngh_buf", "test_cco_ngh_obj", "test_cco_pr_ngh_buf"], "no neighbourhood collectives"),
    **dict.fromkeys(["test_file", "test_io"], "no files"),
    **dict.fromkeys(["test_rma", "test_rma_nb", "test_win"], "no windows: the pool is memory that all ranks map"),
    **dict.fromkeys(["test_datatype", "test_pack", "test_util_dtlib"], _DERIVED),
    **dict.fromkeys(["test_address", "test_handle", "test_status", "test_request", "test_pickle"], _HANDLES),
    **dict.fromkeys(["test_ctypes", "test_cffi", "test_mpiabi", "test_objmodel", "test_subclass"], _HANDLES),
    **dict.fromkeys(
        ["test_buffer", "test_mpimem", "test_msgspec"], "about mpi4py's own buffers and message specifications"
    ),
    **dict.fromkeys(["test_doc", "test_package", "test_toplevel", "test_mpiapi"], "about the package mpi4py"),
    **dict.fromkeys(
        ["test_environ", "test_session", "test_threads"], "no start, end or sessions of MPI: launch has them"
    ),
    **dict.fromkeys(["test_attributes", "test_info", "test_errhandler"], "no attributes, infos or error handlers"),
    **dict.fromkeys(["test_errorcode", "test_exceptions"], "errors are exceptions of their own, without MPI's codes"),
    **dict.fromkeys(["test_comm", "test_group"], "about names, groups and handles; groups are lists of ranks here"),
    "test_comm_topo": "no Cartesian or graph topologies",
    "test_grequest": "no generalized requests",
    "test_op": "no operations of users'",
    "test_p2p_buf_part": "no partitioned messages",
    "test_ulfm": "shrink and revoke have other arguments, and tests of their own",
    "test_util_pkl5": "pickles of buffers out of band: arrays travel as arrays",
    "test_util_pool": "no pool of workers over messages",
    "test_util_sync": "no windows, of which mpi4py makes its locks",
}


def folder(cache: Path) -> Path | str:
    """Return the folder of the suite's tests, fetched once into ``cache``; or why it cannot be had, in words."""
    unpacked = cache / f"mpi4py-{VERSION}"
    if unpacked.exists():
        return unpacked / "test"
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as own:  # others may fetch it too
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", ":all:"]
        command += ["--no-build-isolation", "--dest", own, f"mpi4py=={VERSION}"]
        try:
            ended = subprocess.run(command, capture_output=True, text=True, timeout=120)
        except subprocess.TimeoutExpired:
            return "the package index did not answer in 120 s"
        archive = Path(own) / f"{unpacked.name}.tar.gz"
        if ended.returncode or not archive.exists():
            return f"pip cannot download mpi4py {VERSION}: {(ended.stderr.splitlines() or ['no reason'])[-1]}"
        return unpack(archive, unpacked) / "test"


def unpack(archive: Path, to: Path) -> Path:
    """Unpack an archive whose checksum is known, into a folder that is there whole or not at all."""
    found = hashlib.sha256(archive.read_bytes()).hexdigest()
    assert found == SHA256, f"{archive.name} has the checksum {found}, and not {SHA256}"
    with tarfile.open(archive) as held:
        held.extractall(archive.parent, filter="data")
    with suppress(OSError):  # another one came first
        (archive.parent / to.name).rename(to)
    return to


class Told(unittest.TestResult):
    """What became of each test."""

    def __init__(self) -> None:
        super().__init__()
        self.told: dict[str, str] = {}

    def addSuccess(self, test: unittest.TestCase) -> None:
        self.told.setdefault(named(test), "passed")

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:
        super().addSkip(test, reason)
        self.told[named(test)] = f"skipped: {reason}"

    def addFailure(self, test: unittest.TestCase, error: object) -> None:
        super().addFailure(test, error)  # type: ignore[arg-type]
        self.told[named(test)] = self.failures[-1][1]

    def addError(self, test: unittest.TestCase, error: object) -> None:
        super().addError(test, error)  # type: ignore[arg-type]
        self.told[named(test)] = self.errors[-1][1]

    def addSubTest(self, test: unittest.TestCase, subtest: unittest.TestCase, error: object) -> None:
        super().addSubTest(test, subtest, error)  # type: ignore[arg-type]
        if error is not None:
            self.told[named(test)] = (self.failures + self.errors)[-1][1]


def named(test: object) -> str:
    return test.id().partition(".")[2] if isinstance(test, unittest.TestCase) else str(test)


def cases(suite: unittest.TestSuite) -> Iterator[unittest.TestCase]:
    for each in suite:
        if isinstance(each, unittest.TestSuite):
            yield from cases(each)
        else:
            yield each


def run(context: RankContext, where: Path, module: str, deadline_s: float) -> dict[str, str]:
    """Run a module's tests on this rank: "passed", "skipped: REASON" or what went wrong, for each class.test."""
    MPI = names.module(context, reduces=MODULES[module], deadline_s=deadline_s)
    package = ModuleType("mpi4py")
    package.MPI = MPI  # type: ignore[attr-defined]
    sys.modules |= {"mpi4py": package, "mpi4py.MPI": MPI}
    sys.path.insert(0, str(where))
    import arrayimpl  # type: ignore[import-not-found]

    # Host memory in a device's clothes: no device of ours has such arrays.
    arrayimpl.ArrayBackends[:] = [
        each for each in arrayimpl.ArrayBackends if not issubclass(each, arrayimpl.BaseFakeGPUArray)
    ]
    # Neither NumPy nor we read a long double from DLPack, which does not say what its bits are.
    arrayimpl.DLPackNumPy.TypeMap = {
        code: its for code, its in arrayimpl.ArrayNumPy.TypeMap.items() if code not in ("g", "G")
    }
    told, unused = Told(), set(SKIPPED.get(module, {}))
    for case in cases(unittest.defaultTestLoader.loadTestsFromName(module)):
        fitting = [pattern for pattern in SKIPPED.get(module, {}) if fnmatch(named(case), pattern)]
        unused -= set(fitting)
        if fitting:
            told.addSkip(case, SKIPPED[module][fitting[0]])
        else:
            case.run(told)
    assert not unused, f"no test of {module} fits {sorted(unused)}"
    return told.told
