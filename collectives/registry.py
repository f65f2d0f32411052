"""Which algorithms there are, and how a call becomes a plan."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from collectives.builder import ALL, STYLES, Builder, Style
from collectives.contracts import COLLECTIVES
from cxlemu.errors import ArgumentError
from cxlemu.plan import DTYPES, Call, Frame, Layout, Plan, RankPart

Algorithm = Callable[[Builder], None]


@dataclass(frozen=True, slots=True)
class Recipe:
    """An algorithm with a style: what ``--variant`` names."""

    collective: str
    name: str
    algorithm: Algorithm
    style: Style


_RECIPES: dict[tuple[str, str], Recipe] = {}


def algorithm(
    collective: str, *, variants: tuple[str, ...] = tuple(STYLES), name: str = ""
) -> Callable[[Algorithm], Algorithm]:
    """Register a function that builds one rank's part with a Builder's words.

    By default it gives CCCL's variants naive, aggregate and all, and line. With ``name`` it is one variant of that
    name, interleaved, chunked and overlapped. Raises ArgumentError for a collective that does not exist.
    """
    if collective not in COLLECTIVES:
        raise ArgumentError(f"there is no collective {collective!r}: it is one of {', '.join(COLLECTIVES)}")

    def register(function: Algorithm) -> Algorithm:
        styles = {name: replace(ALL, name=name)} if name else {v: STYLES[v] for v in variants}
        for variant, style in styles.items():
            _RECIPES[collective, variant] = Recipe(collective, variant, function, style)
        function.__dict__["collective"] = collective
        return function

    return register


def _load_shipped() -> None:
    importlib.import_module("collectives.algorithms")


def variants(collective: str) -> list[str]:
    """The variants that a collective can be run in."""
    _load_shipped()
    return [name for c, name in _RECIPES if c == collective]


def recipe(collective: str, variant: str) -> Recipe:
    """Raises ArgumentError naming what there is."""
    _load_shipped()
    if (collective, variant) in _RECIPES:
        return _RECIPES[collective, variant]
    if collective not in COLLECTIVES:
        raise ArgumentError(f"there is no collective {collective!r}: it is one of {', '.join(COLLECTIVES)}")
    raise ArgumentError(f"{collective} has no variant {variant!r}: it has {', '.join(variants(collective))}")


def load_algorithm(spec: str) -> Recipe:
    """A user's own algorithm: ``FILE.py:function``, decorated with ``@algorithm``. The file is executed.

    Raises ArgumentError when the file, the function or the decorator is missing.
    """
    file, _, function_name = spec.rpartition(":")
    path = Path(file)
    if not file or not function_name:
        raise ArgumentError(f"--algorithm takes FILE.py:function, not {spec!r}")
    if not path.is_file():
        raise ArgumentError(f"--algorithm {spec}: there is no file {file}")
    module_spec = importlib.util.spec_from_file_location(f"user_algorithm_{path.stem}", path)
    if module_spec is None or module_spec.loader is None:
        raise ArgumentError(f"--algorithm {spec}: {file} is not a Python file")
    module = importlib.util.module_from_spec(module_spec)
    sys.modules[module_spec.name] = module
    before = dict(_RECIPES)
    try:
        module_spec.loader.exec_module(module)
    except Exception as error:
        raise ArgumentError(f"--algorithm {spec}: {file} fails with {type(error).__name__}: {error}") from error
    finally:
        own = [r for key, r in _RECIPES.items() if before.get(key) is not r]
        _RECIPES.clear()
        _RECIPES.update(before)  # a file adds nothing to what we ship: only what was asked for is used
    function = getattr(module, function_name, None)
    for candidate in own:
        if candidate.algorithm is function:
            style = replace(candidate.style, name=function_name) if candidate.name not in STYLES else ALL
            return Recipe(candidate.collective, function_name, candidate.algorithm, style)
    raise ArgumentError(f"--algorithm {spec}: {file} has no function {function_name!r} decorated with @algorithm")


def build(recipe: Recipe, layout: Layout, call: Call) -> Plan:
    """The plan of a call. Pure: the same arguments give an equal plan. Raises ArgumentError for an impossible call."""
    check(call)
    if layout.ranks != call.ranks:
        raise ArgumentError(f"a layout for {layout.ranks} ranks cannot carry a call of {call.ranks} ranks")

    def build_part(rank: int) -> tuple[Frame, RankPart]:
        builder = Builder(call, layout, recipe.style, rank)
        if call.ranks == 1:  # every collective of one rank is a copy
            builder.copy(builder.output(), builder.input(), call.nbytes)
        else:
            recipe.algorithm(builder)
        return builder.finish()

    return Plan(call, layout, build_part)


def check(call: Call) -> None:
    """Raises ArgumentError for a call that means nothing."""
    collective = COLLECTIVES.get(call.collective)
    if collective is None:
        raise ArgumentError(f"there is no collective {call.collective!r}: it is one of {', '.join(COLLECTIVES)}")
    if call.ranks < 1:
        raise ArgumentError(f"a communicator has at least one rank, not {call.ranks}")
    if not 0 <= call.root < call.ranks:
        raise ArgumentError(f"root {call.root} is not one of the ranks 0..{call.ranks - 1}")
    if call.dtype not in DTYPES:
        raise ArgumentError(f"there is no dtype {call.dtype!r}: it is one of {', '.join(DTYPES)}")
    operations = ("sum", "prod", "min", "max", "avg") if collective.reduces else ("none",)
    if call.redop not in operations:
        raise ArgumentError(f"{call.collective} takes op {', '.join(operations)}, not {call.redop!r}")
    if call.nbytes < 0 or call.nbytes % DTYPES[call.dtype].itemsize:
        raise ArgumentError(f"{call.nbytes} bytes are no whole number of {call.dtype} elements")
