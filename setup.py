"""The build of what is in C, each extension from a folder's *.c; and which packages there are."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy
from setuptools import Extension, find_packages, setup
from setuptools.command.build_ext import build_ext

FLAGS = ["-std=c11", "-O3", "-fvisibility=hidden", "-ffp-contract=off"]  # contracting would round f32 sums differently
NUMPY = ("-isystem", numpy.get_include())
PACKAGES = ("cxlemu", "collectives", "faults", "studies")
COST, MACHINE = "cxlemu/native/cost", "cxlemu/native"
# What executes records, through an emulated cache or on the cards.
CACHE = ("adversary", "cache", "copy", "damage", "hostlock", "lines")
CHECKS = ("address", "check", "told")  # the rules of plans are those of the machine
EXECUTOR = (*CACHE, *CHECKS, "executor", "fold", "pace", "peer_memory", "shadow", "shadow_executor")


def found(folder: str, pattern: str) -> list[str]:
    return sorted(str(path) for path in Path(folder).glob(pattern))


def extension(
    name: str,
    *folders: str,
    sources: tuple[str, ...] = (),
    flags: tuple[str, ...] = (),
    include: tuple[str, ...] = (),
    links: tuple[str, ...] = (),
) -> Extension:
    """From all C of some folders, and more ``sources``; built again where any header of ours changes."""
    return Extension(
        name,
        sources=[*sources, *(file for folder in folders for file in found(folder, "*.c"))],
        depends=[file for package in PACKAGES for file in found(package, "**/*.h")],
        include_dirs=list(include),
        # CI adds warnings as errors, and the sanitizers.
        extra_compile_args=[*FLAGS, *flags, *os.environ.get("CXLEMU_CFLAGS", "").split()],
        extra_link_args=[*links, *os.environ.get("CXLEMU_LDFLAGS", "").split()],
    )


class SideBySide(build_ext):
    """Compiles an extension's sources on all cores, where distutils takes one after the other."""

    def build_extensions(self) -> None:
        in_turn = self.compiler.compile

        def compiled(sources: list[str], **how: Any) -> list[str]:
            with ThreadPoolExecutor(os.cpu_count()) as threads:
                return [
                    target for made in threads.map(lambda source: in_turn([source], **how), sources) for target in made
                ]

        self.compiler.compile = compiled
        super().build_extensions()


setup(
    cmdclass={"build_ext": SideBySide},
    # The topologies in configs/ are installed inside the package: see package-dir in pyproject.toml.
    packages=[*find_packages(include=[f"{name}*" for name in PACKAGES]), "cxlemu.configs"],
    ext_modules=[
        extension("cxlemu._native", MACHINE, COST, flags=NUMPY),
        extension("cxlemu._virtual", f"{MACHINE}/virtual", COST),
        extension("cxlemu._measure", f"{MACHINE}/measure"),
        extension("faults.explore._search", "faults/explore/native", include=(MACHINE,)),
        extension(
            "faults.litmus._straight", "faults/litmus/native", sources=(f"{MACHINE}/lines.c",), include=(MACHINE,)
        ),
        extension(
            "faults.prove._pass",
            "faults/prove/native",
            sources=tuple(f"{MACHINE}/{part}.c" for part in CHECKS),
            flags=("-DMAX_STREAMS=8",),  # a device's plan has a queue beside each stream
            include=(MACHINE,),
        ),
        extension(
            "faults.lockstep._world",
            "faults/lockstep/native",
            COST,
            sources=tuple(f"{MACHINE}/{part}.c" for part in EXECUTOR),
            flags=("-DMAX_STREAMS=8",),  # as for the prover
            include=(MACHINE,),
        ),
        # No Python in it: programs load it, and it is named as an extension to be built and installed as one.
        extension(
            "faults.programs._runtime",
            "faults/programs/native",
            sources=tuple(f"{MACHINE}/{part}.c" for part in CACHE),
            flags=("-ftls-model=initial-exec", "-DLOCK_WAIT=program_lock_wait"),
            # A call that is bound late changes the loader's memory, which cycle.c compares, whenever it comes first.
            links=("-Wl,-z,now",),
            include=(MACHINE,),
        ),
    ],
)
