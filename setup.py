"""The build of what is in C; everything else is in pyproject.toml."""

import os

import numpy
from setuptools import Extension, setup

FLAGS = ["-std=c11", "-O3", "-fvisibility=hidden", "-ffp-contract=off"]  # contracting would round f32 sums differently

NATIVE = ("adversary", "cache", "calls", "check", "damage", "executor", "fold", "hostlock", "lines", "lines_module")
NATIVE += ("lock_module", "module", "operation", "pace", "pace_module", "place", "ring", "shadow", "shadow_module")
NATIVE += ("through", "verbs")
NATIVE_HEADERS = (
    "adversary",
    "cache",
    "constants",
    "core",
    "damage",
    "hostlock",
    "lines",
    "modules",
    "pace",
    "place",
    "python",
    "shadow",
)
NATIVE_HEADERS += ("through",)
COST = ("compute", "instruction", "tables", "transfer")
COST_HEADERS = ("cost", "tables")
SEARCH = ("line", "module", "reduce", "rows", "search", "settle", "table")
PROVER = ("bells", "clock", "kernels", "lines", "module", "pass", "rules", "touch", "values")


def paths(folder: str, names: tuple[str, ...], suffix: str) -> list[str]:
    return [f"{folder}/{name}.{suffix}" for name in names]


def extension(
    name: str, sources: list[str], depends: list[str], flags: tuple[str, ...] = (), include: tuple[str, ...] = ()
) -> Extension:
    return Extension(
        name,
        sources=sources,
        depends=depends,
        include_dirs=list(include),
        # CI adds warnings as errors, and the sanitizers.
        extra_compile_args=[*FLAGS, *flags, *os.environ.get("CXLEMU_CFLAGS", "").split()],
        extra_link_args=os.environ.get("CXLEMU_LDFLAGS", "").split(),
    )


setup(
    ext_modules=[
        extension(
            "cxlemu._native",
            paths("cxlemu/native", NATIVE, "c") + paths("cxlemu/cost", COST, "c"),
            paths("cxlemu/native", NATIVE_HEADERS, "h") + paths("cxlemu/cost", COST_HEADERS, "h"),
            ("-isystem", numpy.get_include()),
        ),
        extension(
            "cxlemu._virtual",
            paths("cxlemu/virtual", ("engine", "module"), "c") + paths("cxlemu/cost", COST, "c"),
            [
                "cxlemu/virtual/virtual.h",
                *paths("cxlemu/native", ("constants", "core"), "h"),
                *paths("cxlemu/cost", COST_HEADERS, "h"),
            ],
        ),
        extension("collectives._limits", ["collectives/_limits.c"], []),
        extension(
            "faults.explore._search",
            paths("faults/explore/native", SEARCH, "c"),
            paths("faults/explore/native", ("line", "rows", "search", "table"), "h"),
        ),
        extension(
            "faults.prove._pass",
            paths("faults/prove/pass", PROVER, "c") + paths("cxlemu/native", ("check", "place"), "c"),
            ["faults/prove/pass/pass.h", *paths("cxlemu/native", ("constants", "core", "place"), "h")],
            include=("cxlemu/native",),
        ),
    ]
)
