"""A page for every package: its public classes and functions, from their docstrings; and one of what users import."""

from __future__ import annotations

import ast
import importlib
import inspect
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROOMS = {
    "cxlemu": "the machine: pools, memories, topologies, plans, engines, worlds",
    "collectives": "programs for the machine: algorithms, the communicator, PyTorch's backend",
    "faults": "the machine's adversary and its judge: proofs, searches, faults, campaigns",
    "studies": "what it means: training, tiering, published systems",
}


BEHIND = "---\nsearch:\n  boost: 0.3\n---\n\n"  # pages for people come first in a search


def packages(room: str) -> Iterator[tuple[str, list[str]]]:
    """Yield each package of a room with its modules, itself first. Commands have pages of their own."""
    for folder in sorted({ROOT / room, *(file.parent for file in (ROOT / room).rglob("*.py"))}):
        parts = folder.relative_to(ROOT).parts
        if "cli" in parts or any(part.startswith("_") for part in parts):
            continue
        name = ".".join(parts)
        modules = [f"{name}.{file.stem}" for file in sorted(folder.glob("*.py")) if not file.stem.startswith("_")]
        yield name, [*([name] if (folder / "__init__.py").exists() else []), *modules]


def pages() -> dict[str, dict[str, str]]:
    """Make the pages: room -> the package's name -> Markdown."""
    return {room: {name: page(name, modules) for name, modules in packages(room)} for room in ROOMS}


def page(name: str, modules: list[str]) -> str:
    """All modules of a package, for mkdocstrings to fill in."""
    made = [f"{BEHIND}# {name}\n", *names(name)]
    for module in modules:
        made.append(f"::: {module}\n")
        if module == name:  # what it takes from its modules stands there
            made[-1] = made[-1].rstrip("\n")
            made.append(f"    options:\n      members: {defined(name) or 'false'}\n")
    return "\n".join(made)


def names(package: str) -> list[str]:
    """A table of what programs import from a package; nothing where it does not say."""
    if not (ROOT / package.replace(".", "/") / "__init__.py").exists():
        return []
    module = importlib.import_module(package)
    rows = []
    for name in getattr(module, "__all__", ()):
        value = getattr(module, name)
        if inspect.isclass(value) or inspect.isfunction(value):
            first = next(iter((inspect.getdoc(value) or "").replace("``", "`").replace("|", r"\|").splitlines()), "")
            rows.append(f"| [`{package}.{name}`][{value.__module__}.{value.__qualname__}] | {first} |")
    return ["| import | |", "|---|---|", *rows, ""] if rows else []


def defined(package: str) -> list[str]:
    """The public names that a package's own file defines."""
    tree = ast.parse((ROOT / package.replace(".", "/") / "__init__.py").read_text())
    kinds = (ast.ClassDef, ast.FunctionDef)
    return [node.name for node in tree.body if isinstance(node, kinds) and not node.name.startswith("_")]


def index() -> str:
    """The page of what users import, and of all packages."""
    lines = ["# Public names\n", "What programs import; [the Python API](../../python.md) shows it in use.\n"]
    for room in ("cxlemu", "collectives", "faults"):
        lines += names(room)
    lines.append("\n## Packages\n")
    for room, about in ROOMS.items():
        lines.append(f"- **{room}**, {about}: {', '.join(f'[{name}]({name}.md)' for name, _ in packages(room))}")
    return "\n".join(lines) + "\n"
