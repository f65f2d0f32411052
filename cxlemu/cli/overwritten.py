"""Packages of ours that another distribution has overwritten, and how to mend that.

PyPI has distributions that are called as our packages are: one that is installed later puts its files over ours.
"""

import re
from collections.abc import Iterable
from importlib.metadata import Distribution, distributions

PACKAGES = ("cxlemu", "collectives", "faults", "studies")


def remedies(packages: Iterable[str]) -> dict[str, str]:
    """Return a sentence for each of our packages that another distribution brings as well."""
    wanted = set(packages).intersection(PACKAGES)
    bringers = [(its.metadata["Name"], brought) for its in distributions() if (brought := _top_level(its) & wanted)]
    remedy = {}
    for package in packages:
        others = sorted({name for name, brought in bringers if package in brought and name.lower() != "cxlemu"})
        if not others:
            continue
        remedy[package] = (
            f"{', '.join(others)} of PyPI brings a package {package!r} as well and may have overwritten ours: "
            f"pip uninstall {' '.join(others)}, and then in the clone pip install --force-reinstall --no-deps -e ."
        )
    return remedy


def _top_level(its: Distribution) -> set[str]:
    """Name the packages and modules of a distribution, as `packages_distributions` does, which makes a path of every
    installed file."""
    if top := its.read_text("top_level.txt"):
        return set(top.split())
    return set(re.findall(r'^"?(\w+)(?:/|\.py\b)', its.read_text("RECORD") or "", re.MULTILINE))
