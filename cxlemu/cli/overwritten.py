"""Packages of ours that another distribution has overwritten, and how to mend that.

PyPI has distributions that are called as our packages are: one that is installed later puts its files over ours.
"""

from __future__ import annotations

from importlib.metadata import packages_distributions

PACKAGES = ("cxlemu", "collectives", "faults", "studies")


def mend(package: str) -> str:
    """Return a sentence that says which distributions bring a package of ours as well; empty if none does.

    Args:
        package: The name of one of our packages.
    """
    others = sorted({name for name in packages_distributions().get(package, ()) if name.lower() != "cxlemu"})
    if package not in PACKAGES or not others:
        return ""
    return (
        f"{', '.join(others)} of PyPI brings a package {package!r} as well and may have overwritten ours: "
        f"pip uninstall {' '.join(others)}, and then pip install --force-reinstall --no-deps cxlemu"
    )
