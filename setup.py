"""The build of what is in C; everything else is in pyproject.toml."""

import os

import numpy
from setuptools import Extension, setup

NAMES = ("adversary", "cache", "calls", "check", "damage", "executor", "fold", "hostlock", "lines", "lines_module")
NAMES += ("module", "operation", "place", "ring", "shadow", "shadow_module", "through", "verbs")
HEADERS = (
    "adversary",
    "cache",
    "core",
    "damage",
    "hostlock",
    "lines",
    "modules",
    "place",
    "python",
    "shadow",
    "through",
)
SEARCH_NAMES = ("line", "module", "reduce", "rows", "search", "table")
SEARCH_HEADERS = ("line", "rows", "search", "table")
PROVER_NAMES = ("bells", "clock", "lines", "module", "pass", "rules", "touch", "values")
FLAGS = ["-std=c11", "-O3", "-fvisibility=hidden", "-ffp-contract=off"]  # contracting would round f32 sums differently

setup(
    ext_modules=[
        Extension(
            "cxlemu._native",
            sources=[f"cxlemu/native/{name}.c" for name in NAMES],
            depends=[f"cxlemu/native/{name}.h" for name in HEADERS],
            # CI adds warnings as errors, and the sanitizers.
            extra_compile_args=[*FLAGS, "-isystem", numpy.get_include(), *os.environ.get("CXLEMU_CFLAGS", "").split()],
            extra_link_args=os.environ.get("CXLEMU_LDFLAGS", "").split(),
        ),
        Extension(
            "faults.prove._pass",
            sources=[f"faults/prove/pass/{name}.c" for name in PROVER_NAMES]
            + [f"cxlemu/native/{name}.c" for name in ("check", "place")],
            depends=["faults/prove/pass/pass.h", "cxlemu/native/core.h", "cxlemu/native/place.h"],
            include_dirs=["cxlemu/native"],
            extra_compile_args=FLAGS + os.environ.get("CXLEMU_CFLAGS", "").split(),
            extra_link_args=os.environ.get("CXLEMU_LDFLAGS", "").split(),
        ),
        Extension(
            "faults.explore._search",
            sources=[f"faults/explore/native/{name}.c" for name in SEARCH_NAMES],
            depends=[f"faults/explore/native/{name}.h" for name in SEARCH_HEADERS],
            extra_compile_args=FLAGS + os.environ.get("CXLEMU_CFLAGS", "").split(),
            extra_link_args=os.environ.get("CXLEMU_LDFLAGS", "").split(),
        ),
        Extension(
            "collectives._limits",
            sources=["collectives/_limits.c"],
            extra_compile_args=FLAGS + os.environ.get("CXLEMU_CFLAGS", "").split(),
            extra_link_args=os.environ.get("CXLEMU_LDFLAGS", "").split(),
        ),
    ]
)
