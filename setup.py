"""The native engine's build; everything else is in pyproject.toml."""

import os

from setuptools import Extension, setup

NAMES = ("check", "executor", "fold", "lines", "lines_module", "module", "place")
FLAGS = ["-std=c11", "-O3", "-fvisibility=hidden", "-ffp-contract=off"]  # contracting would round f32 sums differently

setup(
    ext_modules=[
        Extension(
            "cxlemu._native",
            sources=[f"cxlemu/native/{name}.c" for name in NAMES],
            depends=[f"cxlemu/native/{name}.h" for name in ("core", "lines", "modules", "place")],
            # CI adds warnings as errors, and the sanitizers.
            extra_compile_args=FLAGS + os.environ.get("CXLEMU_CFLAGS", "").split(),
            extra_link_args=os.environ.get("CXLEMU_LDFLAGS", "").split(),
        )
    ]
)
