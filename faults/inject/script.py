"""A fault script: which faults happen at which instruction, and what nature does meanwhile. Data, never code.

    seed: 7
    adversary: {evict: 0.05, prefetch: 0.1, land: 0.05}
    faults:
      - {kind: poison, rank: 1, when: {call: 0, instruction: 5}, card: 0}
      - {kind: stall, rank: 2, when: {call: 1, instruction: 0}, seconds: 0.1}

A rank's instructions are numbered through its streams, stream after stream; a fault comes before its instruction.
Calls are numbered from 0, from when the script was armed. The same script, seed and program give the same run.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import AfterValidator, Field

from cxlemu.errors import ConfigError
from cxlemu.memory import MemorySpec
from cxlemu.memory.backend import BACKENDS
from cxlemu.memory.rates import DEFAULT_RATES, AdversaryRates
from cxlemu.topology.document import Document
from cxlemu.topology.fields import Model, listed, validated
from faults.inject.fault import FAULTS, Fault

FAULTS_MAX = 63  # a pool's fault page has an entry for each

Rate = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False), AfterValidator(lambda rate: round(rate, 9))]


class NatureRates(Model):
    """The rates of the adversary, with the fields of `AdversaryRates`."""

    evict: Rate = Field(default=DEFAULT_RATES.evict, description="probability of an eviction around each operation")
    prefetch: Rate = Field(default=DEFAULT_RATES.prefetch, description="probability of a prefetch")
    land: Rate = Field(default=DEFAULT_RATES.land, description="probability that posted writes arrive")

    def __bool__(self) -> bool:
        """Whether nature can move anything."""
        return bool(self.evict or self.prefetch or self.land)


def check_faults(
    faults: Sequence[Fault], *, ranks: int, backend: str, cards: int | None = None, restarts: bool = False
) -> None:
    """Check that every fault of a script can happen in a world, of so many cards if that is known, which restarts."""
    for number, fault in enumerate(faults):
        if cards is not None and (fault.card or 0) >= cards:
            raise ConfigError(f"faults[{number}].card is {fault.card}, but cards are numbered 0 to {cards - 1}")
        if FAULTS[fault.kind].restarts and not restarts:
            raise ConfigError(
                f"faults[{number}].kind {fault.kind}: nothing begins again here; use faults sweep or campaign, or kill"
            )
        if fault.rank >= ranks:
            raise ConfigError(f"faults[{number}].rank is {fault.rank}, but ranks are numbered 0 to {ranks - 1}")
        if FAULTS[fault.kind].emulated and not BACKENDS[backend].emulates_caches:
            raise ConfigError(
                f"faults[{number}].kind {fault.kind} needs emulated memory, not the backend {backend!r}: "
                f"on all backends there are {listed(n for n, k in FAULTS.items() if not k.emulated)}"
            )


class Script(Model):
    """A whole script. It is immutable; scripts are equal if their files say the same."""

    seed: Annotated[int, Field(ge=0, lt=10**18)] = Field(default=0, description="seed of all random choices")
    adversary: NatureRates | None = Field(default=None, description="rates of nature's moves; absent: none")
    faults: Annotated[tuple[Fault, ...], Field(strict=False, max_length=FAULTS_MAX)] = Field(
        default=(), description="faults, in any order"
    )

    @classmethod
    def load(cls, path: Path) -> Script:
        return validated(cls, Document.read(path, "fault script"))

    @classmethod
    def eventful(cls, path: Path) -> Script:
        """Load the file of ``--faults``. Raises ConfigError for one that asks for nothing."""
        script = cls.load(path)
        if not script.faults and not script.adversary:
            raise ConfigError(f"{path} has neither faults nor an adversary with a rate above 0: nothing would happen")
        return script

    @classmethod
    def parse(cls, text: str, file: str = "script") -> Script:
        return validated(cls, Document(text.encode(), file, "fault script"))

    def dump(self) -> str:
        """Write the script as YAML that `parse` turns into an equal script."""
        return yaml.safe_dump(self.plain(), sort_keys=False, default_flow_style=None, width=120)

    def plain(self) -> dict[str, Any]:
        """Give the script as JSON has it: ``Script.model_validate`` takes it back."""
        return self.model_dump(mode="json", exclude_none=True)

    def memory(self) -> MemorySpec:
        """Describe the emulated memory with this script's adversary; without one, nature moves nothing by itself."""
        if not self.adversary:
            return MemorySpec()
        return MemorySpec(seed=self.seed, rates=AdversaryRates(**self.adversary.model_dump()))

    def check(self, *, ranks: int, backend: str, cards: int | None = None, restarts: bool = False) -> None:
        """Check that every fault can happen in a world, as `check_faults`."""
        check_faults(self.faults, ranks=ranks, backend=backend, cards=cards, restarts=restarts)
