"""A process group on the pool, as torch knows it.

torch up to 2.13 lets Python replace a whole ProcessGroup; later ones let it bring a Backend, which is behind one. Both
classes below are shells: all methods are in `CxlGroup` (group.py).
"""

from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist

from collectives.torch.group import CxlGroup
from collectives.torch.options import Options


class GroupAsProcessGroup(CxlGroup, dist.ProcessGroup):  # type: ignore[misc]
    """For torch up to 2.13: the group itself."""

    def __init__(self, asked: Any, options: Options) -> None:
        dist.ProcessGroup.__init__(self, asked.group_rank, asked.group_size)
        self._bound: torch.device | None = None
        self._set_up(asked, options)

    @property
    def group_name(self) -> str:
        return self._name

    @property
    def group_desc(self) -> str:
        return self._description

    @property
    def bound_device_id(self) -> torch.device | None:
        return self._bound

    @bound_device_id.setter
    def bound_device_id(self, device: torch.device | None) -> None:
        self._bound = device

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device("cpu")] + [torch.device("cuda")] * torch.cuda.is_available()

    def getGroupName(self) -> str:
        return self._name

    def _set_group_name(self, name: str) -> None:
        self._name = name

    def _set_group_desc(self, description: str) -> None:
        self._description = description

    setGroupName, setGroupDesc = _set_group_name, _set_group_desc

    def getGroupDesc(self) -> str:
        return self._description

    def get_group_store(self) -> Any:
        return self._store

    def _get_backend(self, device: Any) -> Any:
        """Return the group itself, for the CPU and GPUs: nothing is behind it. Raises RuntimeError for others."""
        return self if torch.device(device).type in ("cpu", "cuda") else super()._get_backend(device)


_Backend = getattr(dist, "BackendBase", dist._Backend)


class GroupAsBackend(CxlGroup, _Backend):  # type: ignore[misc, valid-type]
    """For torch from 2.14 on: what a ProcessGroup calls for tensors of the CPU."""

    def __init__(self, asked: Any, options: Options) -> None:
        _Backend.__init__(self, asked.group_rank, asked.group_size)
        self._its_options = _Backend.Options("cxl", asked.timeout)
        self._set_up(asked, options)

    @property
    def options(self) -> Any:
        return self._its_options


def create(asked: Any, options: Options | None) -> CxlGroup:
    if options is None:
        options = Options.from_environment()
    if not isinstance(options, Options):
        raise TypeError(f"pg_options of backend cxl are collectives.torch.Options, not {type(options).__name__}")
    return (GroupAsBackend if group_is_behind() else GroupAsProcessGroup)(asked, options)


def group_is_behind() -> bool:
    """Whether this torch lets Python bring a Backend, which is behind a ProcessGroup: from 2.14 on."""
    try:
        _Backend(0, 1)
    except TypeError:  # it has no constructor
        return False
    return True


def make_group(
    store: Any, rank: int, ranks: int, timeout: timedelta, name: str = "made", options: Options | None = None
) -> Any:
    """Make a process group on a store, without torch's registry: for libraries that make their groups themselves.

    Args:
        store: Where the group's members meet, and they alone.
        rank: This process's rank in the group.
        ranks: How many members the group has.
        timeout: How long calls wait for their peers.
        name: What errors call the group.
        options: Which pool; None: what the variables say.
    """
    asked = SimpleNamespace(
        store=store, group_rank=rank, group_size=ranks, timeout=timeout, group_id=name, global_ranks_in_group=()
    )
    group: Any = create(asked, options)
    if not group_is_behind():
        return group
    before, kind = dist.ProcessGroup(store, rank, ranks), dist.ProcessGroup.BackendType.CUSTOM
    before._set_default_backend(kind)
    for device in ("cpu", "cuda"):
        before._register_backend(torch.device(device), kind, group)
    return before


def communicator_of(group: Any = None) -> Any:
    """Return a process group's communicator, which offers what torch lacks: fused products, arrays in the pool."""
    group = dist.group.WORLD if group is None else group
    if isinstance(group, dist.ProcessGroup) and not isinstance(group, CxlGroup):
        group = group._get_backend(torch.device("cpu"))
    if not isinstance(group, CxlGroup):
        raise ValueError("this process group has another backend: make it with init_process_group('cxl')")
    return group.comm
