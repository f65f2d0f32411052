"""A workload from traces: what each rank computes, which collectives it calls, and the order that its steps must keep.

``PREFIX.0.et``, ``PREFIX.1.et``, ... are the ranks. These nodes are read:

    COMP_NODE        ``duration_micros``; ``num_ops``, ``tensor_size``: for an accelerator; ``is_cpu_op``, if not: yes
    COMM_COLL_NODE   ``comm_type``; ``comm_size``, what each rank brings; ``pg_name``, its group, if not: all ranks
    COMM_SEND_NODE   ``comm_size`` bytes to rank ``comm_dst``; ``comm_tag``, ``pg_name``, if there are any
    COMM_RECV_NODE   ``comm_size`` bytes from rank ``comm_src``
    MEM_LOAD_NODE    ``tensor_size`` bytes from the pool, which is Chakra's remote memory
    MEM_STORE_NODE   ``tensor_size`` bytes to the pool
    METADATA_NODE    takes no time

``data_deps`` come before, as in Chakra's own reader: in converted traces they order everything, and ``ctrl_deps`` name
the operator that called a node. On a rank without any ``data_deps``, ``ctrl_deps`` come before. Other nodes (storage)
are refused.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from cxlemu.chakra import files
from cxlemu.chakra.files import Node
from cxlemu.chakra.schema import COLLECTIVES, REDUCE_SCATTER_BLOCK, NodeType
from cxlemu.errors import PlanFileError

RANKS_MAX = 4096
NODES_MAX = 1_000_000  # of all ranks
NUMBER_MAX = 1 << 53
GROUP_BYTES_MAX = 1 << 40  # of one rank in one collective
EVERYONE = ""  # the group of nodes that name none

TAG_MAX = (1 << 31) - 1

_NAMES = {number: name for name, number in COLLECTIVES.items()} | {REDUCE_SCATTER_BLOCK: "reduce_scatter"}


class Computing(NamedTuple):
    duration_us: int  # how long it took when it was recorded, in microseconds
    operations: int  # how many operations it has; with ``moved_bytes`` they give its time on an accelerator
    moved_bytes: int
    on_cpu: bool  # whether it ran on the CPU, not on an accelerator


class ChakraCollective(NamedTuple):
    """A step that calls a collective. ``nbytes`` is what each rank brings; ``group`` names the ranks that call it."""

    name: str
    nbytes: int
    group: str


class ChakraMessage(NamedTuple):
    """A step that sends to rank ``target`` or receives from ``source``; which of both is the rank of the step."""

    source: int
    target: int
    nbytes: int
    tag: int
    group: str

    @property
    def name(self) -> str:
        return "send"


class PoolAccess(NamedTuple):
    loads: bool
    nbytes: int


Work: TypeAlias = "Computing | ChakraCollective | ChakraMessage | PoolAccess | None"


class ChakraStep(NamedTuple):
    """One node of a rank. ``what`` is None where it takes no time; ``after`` are indices of steps of the same rank."""

    id: int
    name: str
    what: Work
    after: tuple[int, ...]


@dataclass(frozen=True)
class ChakraWorkload:
    """The steps of all ranks: ``ranks[k]`` are those of rank k, in the order of their ids.

    ``groups`` has the ranks of each group that collectives name; ``EVERYONE`` is the group of all.
    """

    ranks: tuple[tuple[ChakraStep, ...], ...]
    groups: Mapping[str, tuple[int, ...]]
    changed_by: frozenset[str] = frozenset()  # which of `load`'s options made another workload of the files

    @property
    def steps(self) -> int:
        return sum(map(len, self.ranks))


def load(
    prefix: Path, groups: Any = None, groups_file: str = "", *, without_missing: bool = False, ctrl_deps: bool = False
) -> ChakraWorkload:
    """Read the traces ``PREFIX.k.et`` of all ranks; ``groups`` maps a group's name to its ranks.

    ``without_missing``: a node waits only for those that are there, as ``chakra_converter`` drops some.
    ``ctrl_deps``: nodes also wait for these where a rank has ``data_deps``.
    """
    if not prefix.name:
        raise PlanFileError(f"{prefix} names no trace: give the traces' common name, without .0.et")
    ranks: list[tuple[ChakraStep, ...]] = []
    changed_by: set[str] = set()
    while (path := prefix.with_name(f"{prefix.name}.{len(ranks)}.et")).exists():
        if len(ranks) == RANKS_MAX:
            raise PlanFileError(f"{path}: a replay takes at most {RANKS_MAX} ranks")
        ranks.append(_steps(files.read(path), len(ranks), str(path), without_missing, ctrl_deps, changed_by))
        if sum(map(len, ranks)) > NODES_MAX:
            raise PlanFileError(f"{path}: a replay takes at most {NODES_MAX} nodes in all files together")
    beyond = _highest_rank(prefix)
    if beyond >= len(ranks):
        raise PlanFileError(f"{path} does not exist, but {prefix}.{beyond}.et does: each rank needs its file")
    if not ranks:
        raise PlanFileError(f"{path} does not exist: give the traces' common name, without .0.et")
    members = _groups(groups, len(ranks), groups_file) | {EVERYONE: tuple(range(len(ranks)))}
    for rank, steps in enumerate(ranks):
        for step in steps:
            if isinstance(step.what, ChakraCollective) and rank not in members.get(step.what.group, ()):
                known = "is not a member of that group" if step.what.group in members else "no file of groups names it"
                raise PlanFileError(
                    f"{prefix}.{rank}.et: node {step.id} is called in group {step.what.group!r}, but {known}"
                )
            if isinstance(step.what, ChakraMessage):
                peer = step.what.target if step.what.source == rank else step.what.source
                if peer == rank or peer >= len(ranks):
                    wrong = "itself" if peer == rank else f"rank {peer}, but there are ranks 0 to {len(ranks) - 1}"
                    raise PlanFileError(
                        f"{prefix}.{rank}.et: node {step.id} is a message between rank {rank} and {wrong}"
                    )
    return ChakraWorkload(tuple(ranks), members, frozenset(changed_by))


def _highest_rank(prefix: Path) -> int:
    pattern = re.compile(re.escape(prefix.name) + r"\.(0|[1-9][0-9]{0,8})\.et", re.ASCII)
    try:
        names = [path.name for path in prefix.parent.iterdir()]
    except OSError:
        return -1
    return max((int(match[1]) for match in map(pattern.fullmatch, names) if match), default=-1)


def _steps(
    nodes: list[Node], rank: int, file: str, without_missing: bool, ctrl_deps: bool, changed_by: set[str]
) -> tuple[ChakraStep, ...]:
    by_data = any(node.deps for node in nodes)
    if ctrl_deps and by_data and any(set(node.ctrl_deps) - set(node.deps) for node in nodes):
        changed_by.add("ctrl_deps")
    ctrl_deps = ctrl_deps or not by_data
    nodes = sorted(nodes, key=lambda node: node.id)
    place = {node.id: index for index, node in enumerate(nodes)}
    steps = []
    for node in nodes:
        deps = dict.fromkeys([*node.ctrl_deps, *node.deps] if ctrl_deps else node.deps)
        missing = next((dep for dep in deps if dep not in place), None)
        if missing is not None and not without_missing:
            said = f"{file}: node {node.id} waits for node {missing}, which is missing"
            raise PlanFileError(f"{said}; --skip-missing replays without it")
        if missing is not None:
            changed_by.add("without_missing")
        after = tuple(place[dep] for dep in deps if dep in place)
        steps.append(ChakraStep(node.id, node.name[:80], _what(node, rank, file), after))
    return tuple(steps)


def _what(node: Node, rank: int, file: str) -> Work:
    if node.type == NodeType.METADATA:
        return None
    if node.type == NodeType.COMP or _on_host(node):
        numbers = {name: _number(node, name, file, NUMBER_MAX) for name in ("num_ops", "tensor_size")}
        if node.duration_us > NUMBER_MAX // 1000:
            raise PlanFileError(f"{file}: node {node.id} takes {node.duration_us} us, which is too long")
        on_cpu = bool(node.attributes.get("is_cpu_op", True))
        return Computing(node.duration_us, numbers["num_ops"], numbers["tensor_size"], on_cpu)
    if node.type == NodeType.COMM_COLL:
        kind = _number(node, "comm_type", file, NUMBER_MAX, needed=True)
        if kind not in _NAMES:
            raise PlanFileError(f"{file}: node {node.id} has comm_type {kind}, which is not replayed")
        nbytes = _number(node, "comm_size", file, GROUP_BYTES_MAX, needed=_NAMES[kind] != "barrier")
        return ChakraCollective(_NAMES[kind], nbytes, _group(node, file))
    if node.type in (NodeType.COMM_SEND, NodeType.COMM_RECV):
        return _message(node, rank, file)
    if node.type in (NodeType.MEM_LOAD, NodeType.MEM_STORE):
        nbytes = _number(node, "tensor_size", file, GROUP_BYTES_MAX, needed=True)
        return PoolAccess(node.type == NodeType.MEM_LOAD, nbytes)
    raise PlanFileError(
        f"{file}: node {node.id} is of type {node.type}: only computing, collectives, messages and memory are replayed"
    )


def _on_host(node: Node) -> bool:
    """Whether a communication node is the host's call, as PyTorch records it: the kernel has a node of its own."""
    of_communication = node.type in (NodeType.COMM_COLL, NodeType.COMM_SEND, NodeType.COMM_RECV)
    bare = not {"comm_type", "comm_src", "comm_dst"} & set(node.attributes)
    return of_communication and bare and bool(node.attributes.get("is_cpu_op", False))


def _message(node: Node, rank: int, file: str) -> ChakraMessage:
    """Its own end may be left out, but must be this rank where it is said."""
    own, other = ("comm_src", "comm_dst") if node.type == NodeType.COMM_SEND else ("comm_dst", "comm_src")
    peer = _number(node, other, file, RANKS_MAX - 1, needed=True)
    said = _number(node, own, file, RANKS_MAX - 1) if own in node.attributes else rank
    if said != rank:
        raise PlanFileError(f"{file}: {own} of node {node.id} is {said}, but this is the trace of rank {rank}")
    ends = (rank, peer) if node.type == NodeType.COMM_SEND else (peer, rank)
    nbytes = _number(node, "comm_size", file, GROUP_BYTES_MAX, needed=True)
    return ChakraMessage(*ends, nbytes, _number(node, "comm_tag", file, TAG_MAX), _group(node, file))


def _group(node: Node, file: str) -> str:
    group = node.attributes.get("pg_name", EVERYONE)
    if not isinstance(group, str) or not group.isprintable() or len(group) > 80:
        raise PlanFileError(f"{file}: node {node.id} has a pg_name that is not a name")
    return group


def _number(node: Node, name: str, file: str, most: int, *, needed: bool = False) -> int:
    value = node.attributes.get(name)
    if value is None and not needed:
        return 0
    if not isinstance(value, int) or not 0 <= value <= most:
        shown = "is missing" if value is None else f"is {str(value)[:40]!r}, but should be a number from 0 to {most}"
        raise PlanFileError(f"{file}: {name} of node {node.id} {shown}")
    return value


def _groups(given: Any, ranks: int, file: str) -> dict[str, tuple[int, ...]]:
    if given is None:
        return {}
    if not isinstance(given, dict):
        raise PlanFileError(f'{file}: groups are written as {{"name": [ranks]}}')
    groups_of = {}
    for name, members in given.items():
        sound = isinstance(members, list) and all(type(rank) is int and 0 <= rank < ranks for rank in members)
        if not sound or not members or len(set(members)) != len(members):
            raise PlanFileError(
                f"{file}: group {name[:40]!r} should be a list of different ranks from 0 to {ranks - 1}"
            )
        groups_of[name] = tuple(members)
    return groups_of
