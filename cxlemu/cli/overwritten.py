"""Packages of ours that another distribution has overwritten, and how to mend that.

PyPI has distributions that are called as our packages are: one that is installed later puts its files over ours.
"""

from collections.abc import Iterable
from importlib.metadata import packages_distributions

PACKAGES = ("cxlemu", "collectives", "faults", "studies")


def remedies(packages: Iterable[str]) -> dict[str, str]:
    """Return a sentence for each of our packages that another distribution brings as well."""
    brought = packages_distributions()
    remedy = {}
    for package in packages:
        others = sorted({name for name in brought.get(package, ()) if name.lower() != "cxlemu"})
        if package not in PACKAGES or not others:
            continue
        remedy[package] = (
            f"{', '.join(others)} of PyPI brings a package {package!r} as well and may have overwritten ours: "
            f"pip uninstall {' '.join(others)}, and then in the clone pip install --force-reinstall --no-deps -e ."
        )
    return remedy
