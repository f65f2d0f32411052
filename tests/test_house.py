"""The rooms: cxlemu <- collectives <- faults <- studies. No import goes up, no files import each other in a circle."""

import ast
import importlib
import tomllib
from collections.abc import Iterator
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path

import pytest

import collectives
import cxlemu
import faults
from cxlemu import version
from cxlemu.cli.commands import load
from tests.helpers.commands import python
from tests.helpers.tables import with_rows

ROOT = Path(__file__).parents[1]
PACKAGES = ("cxlemu", "collectives", "faults", "studies")  # each imports itself and those before it

# Circles that are one idea in two files, and are closed by annotations alone.
CIRCLES = {
    (
        "collectives.algorithms.hierarchical.level",
        "collectives.algorithms.hierarchical.levels",
    ): "a level has its levels"
}

# Circles of packages and files that stand beside each other, one of them a package; and why.
ROOMS = {
    ("cxlemu.backends", "cxlemu.memory", "cxlemu.pool"): "memory says what a backend is: it names pools in annotations "
    "alone, and the shipped backends by their package's name"
}

# How many floors of files stand on each other in a package, beneath its ``__init__``.
FLOORS = {"collectives.communicator": 8, "collectives.builder": 6}

# Words that are a variant's name and something else: where, and which.
OTHER_MEANINGS = {
    ("collectives/cli/run_work.py", "all"): "--root all",
    ("cxlemu/cli/params.py", "all"): "-n all",
    ("faults/cli/prove_run.py", "all"): "--roots all",
    ("faults/inject/fault.py", "line"): "a field of a fault",
}

# Public classes of several modules that share a name, and why.
SAME_NAME = {
    "Reproduction": "one in the module of each published system, with the same methods for one command",
    "Status": "of a rank, in the session's lines; of a message, as MPI has it",
}


def modules(root: Path) -> dict[str, Path]:
    found = {}
    for package in PACKAGES:
        for file in sorted((root / package).rglob("*.py*")):
            if file.suffix in (".py", ".pyi"):  # the latter of what is in C
                found[".".join(file.relative_to(root).with_suffix("").parts).removesuffix(".__init__")] = file
    return found


def imports(file: Path, known: dict[str, Path]) -> Iterator[tuple[str, int]]:
    """What a file imports, wherever it stands: in functions, for types only, and by a module's name in a string."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{file}:{node.lineno}: imports are absolute"
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                yield (full if full in known else str(node.module)), node.lineno
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            name = node.value.split(":")[0]  # as entry points have it
            if "." in name and name in known:
                yield name, node.lineno


@cache
def graph(root: Path) -> dict[str, dict[str, int]]:
    """Module -> what it imports of ours -> the line."""
    known = modules(root)
    found: dict[str, dict[str, int]] = {}
    for name, file in known.items():
        found[name] = {target: line for target, line in imports(file, known) if target != name}
    return found


def upward(root: Path) -> list[str]:
    found = []
    for module, targets in graph(root).items():
        rank = PACKAGES.index(module.split(".")[0])
        for target, line in targets.items():
            package = target.split(".")[0]
            if package in PACKAGES and PACKAGES.index(package) > rank:
                found.append(f"{module}, line {line}, imports {target}")
    return found


def rooms(files: dict[str, dict[str, int]]) -> dict[str, dict[str, int]]:
    """The same between neighbours: of an import from one package into another, their parts below what both are in.

    Types of what is in C (``_native.pyi``) are those of Python, and close no circle.
    """
    found: dict[str, dict[str, int]] = {}
    for module, targets in files.items():
        for target, line in targets.items():
            here, there = module.split("."), target.split(".")
            parts = zip(here, there, strict=False)
            depth = next((at for at, (one, other) in enumerate(parts) if one != other), 0)
            if depth and not here[-1].startswith("_"):
                found.setdefault(".".join(here[: depth + 1]), {})[".".join(there[: depth + 1])] = line
    return found


def circles(edges: dict[str, dict[str, int]]) -> list[tuple[str, ...]]:
    """Strongly connected files, after Tarjan."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found = []

    def visit(module: str) -> None:
        index[module] = low[module] = len(index)
        stack.append(module)
        for target in edges.get(module, ()):
            if target not in index:
                visit(target)
                low[module] = min(low[module], low[target])
            elif target in stack:
                low[module] = min(low[module], index[target])
        if low[module] == index[module]:
            at = stack.index(module)
            circle = tuple(sorted(stack[at:]))
            del stack[at:]
            if len(circle) > 1:
                found.append(circle)

    for module in edges:
        if module not in index:
            visit(module)
    return found


def test_no_import_goes_up() -> None:
    by_name = "cxlemu.pytest_plugin, line 11, imports faults.testing.pytest_plugin"  # pytest does, if it is there
    assert upward(ROOT) == [by_name]


def test_no_files_import_each_other_but_those_named() -> None:
    assert set(circles(graph(ROOT))) == set(CIRCLES)


def test_no_packages_import_each_other_but_those_named() -> None:
    assert set(circles(rooms(graph(ROOT)))) - set(CIRCLES) == set(ROOMS)


def floor(module: str, edges: dict[str, dict[str, int]], package: str) -> int:
    below = [target for target in edges[module] if target.startswith(package + ".")]
    return 1 + max((floor(target, edges, package) for target in below), default=0)


@pytest.mark.parametrize("package", FLOORS)
def test_a_package_has_no_more_floors(package: str) -> None:
    edges = graph(ROOT)
    assert max(floor(module, edges, package) for module in edges if module.startswith(package + ".")) == FLOORS[package]


def test_a_circle_of_packages_without_one_of_files_is_found() -> None:
    files = {"p.a.one": {"p.b.one": 1}, "p.b.two": {"p.a.two": 2}, "p.a.two": {"p.a.one": 3}, "p._c": {"p.a.one": 4}}
    assert circles(files) == []
    assert rooms(files)["p.b"] == {"p.a": 2} and circles(rooms(files)) == [("p.a", "p.b")]


@with_rows(
    "from faults import machine",
    "import faults.machine",
    "def f():\n    from faults.machine import state",
    "from importlib import import_module\n\nstate = import_module('faults.machine')",
    "TABLE = {'verb': ('faults.machine', 'help')}",
)
def test_an_import_that_goes_up_is_found(code: str, tmp_path: Path) -> None:
    for name in ("cxlemu", "faults/machine"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "__init__.py").touch()
    (tmp_path / "faults/__init__.py").touch()
    (tmp_path / "cxlemu/low.py").write_text(code)
    (found,) = upward(tmp_path)
    assert found.startswith("cxlemu.low, line ") and "faults" in found


def test_a_circle_is_found() -> None:
    assert circles({"a": {"b": 1}, "b": {"c": 1}, "c": {"a": 1}, "d": {"a": 1}}) == [("a", "b", "c")]


def test_help_imports_neither_numpy_nor_yaml() -> None:
    code = (
        "import sys; from cxlemu.cli import main; main(['--help'], standalone_mode=False); "
        "print(sorted({'numpy', 'yaml', 'pydantic', 'rich'} & set(sys.modules)))"
    )
    done = python("-c", code, code=0)
    assert done.stdout.splitlines()[-1] == "[]"
    assert " run " in done.stdout and " reproduce " in done.stdout


def test_no_help_of_any_command_imports_what_computes_reads_or_draws() -> None:
    """Help is to be there at once: what a command needs to run is imported when it runs."""
    done = python("-c", ALL_HELPS, code=0)
    helped = done.stdout.split("\n")
    assert len(helped) > 35 and "pool capacity add" in helped and "reproduce cccl" in helped
    assert done.stderr == ""


HEAVY = ("numpy", "pydantic", "yaml", "matplotlib", "cxlemu._native")
ALL_HELPS = f"""
import sys
import click
from cxlemu.cli import main
from cxlemu.cli.commands import commands, load

def show(name, command):
    ctx = click.Context(command, info_name=name)
    command.get_help(ctx)
    print(name)
    for module in {HEAVY!r}:
        if sys.modules.pop(module, None) is not None:
            print(f"{{name}} --help imports {{module}}", file=sys.stderr)
    for verb in command.list_commands(ctx) if isinstance(command, click.Group) else ():
        show(f"{{name}} {{verb}}".strip(), command.get_command(ctx, verb))

show("", main)
for verb in commands("cxlemu.simulate"):
    show(f"simulate {{verb}}", load("cxlemu.simulate", verb))
show("fused --engine virtual", __import__("collectives.cli.fused").cli.fused.virtual)
"""


def test_a_protocol_of_ones_own_is_explored_without_numpy_and_without_a_collective() -> None:
    """They take as long to load as everything else that the command does for it."""
    done = python("-c", EXPLORED, cwd=ROOT)
    assert done.stdout.splitlines()[-1] == "0 []", done.stderr


EXPLORED = """
import sys
from click.testing import CliRunner
from cxlemu.cli import main

done = CliRunner().invoke(main, ["explore", "examples/protocols/ring_queue.py:fixed"])
print(done.exit_code, sorted({"numpy", "pydantic", "collectives.builder", "collectives.algorithms"} & set(sys.modules)))
"""


@pytest.mark.deep(rows=lambda memory: memory == "shm")
@pytest.mark.parametrize("memory", ["shm", "emulated"])
def test_a_rank_imports_no_command_no_model_of_topologies_and_none_of_costs(tmp_path: Path, memory: str) -> None:
    """Each rank pays for what it imports; what its launcher has read and checked comes as plain data."""
    program = tmp_path / "program.py"
    program.write_text(RANK)
    done = python(program, memory)
    assert done.stdout == "[]\n[]\n", done.stderr


NOT_IN_RANKS = (
    *("pydantic", "yaml", "click", "rich", "importlib.metadata", "concurrent.futures", "statistics", "numpy.ma"),
    *("cxlemu.cli", "cxlemu.cost", "cxlemu.topology.model", "cxlemu.engines.pace"),
)
RANK = f"""
import sys
from cxlemu.__main__ import main as _  # as the command's own program does, which ranks import

def main(context, sweep):
    from collectives.sweep.measure import run_sweep

    run_sweep(context, sweep)
    found = sorted(set({NOT_IN_RANKS!r}) & set(sys.modules))
    assert context.topology.name == "laptop"  # imported for whom asks
    return found

if __name__ == "__main__":
    from functools import partial
    from collectives.sweep.sweep import Sweep
    from cxlemu import launch
    from cxlemu.memory import MemorySpec

    asked = partial(main, sweep=Sweep(("all_reduce", "broadcast"), (1 << 10,)))
    memory = MemorySpec(sys.argv[1])
    print(*launch(asked, ranks=2, topology="laptop", memory=memory, how="processes"), sep="\\n")
"""


def test_names_that_flags_offer_are_those_that_there_are() -> None:
    """Flags take them from modules that import nothing, so that help is there at once."""
    from cxlemu import choices
    from cxlemu.cli.backends import backends
    from cxlemu.memory import BACKENDS
    from cxlemu.plan import DTYPES, RedOp

    assert backends() == (tuple(BACKENDS), BACKENDS.help())
    assert tuple(DTYPES) == choices.DTYPE_NAMES and set(choices.GEMM_DTYPES) <= set(DTYPES)
    assert tuple(op.name.lower() for op in RedOp if op is not RedOp.NONE) == choices.REDOPS


def test_what_topology_list_says_is_what_loading_says(monkeypatch: pytest.MonkeyPatch) -> None:
    from cxlemu.topology import Topology, shipped_configs, summary

    monkeypatch.setattr(summary, "_loaded", None)  # none of ours has to be loaded as a whole
    said = {its.name: its for its in summary.summaries()}
    assert list(said) == list(shipped_configs())
    for name in said:
        its = Topology.load(name)
        assert said[name] == (its.name, its.description, its.host_count, its.card_count)


def decided_by_name(source: str, names: set[str]) -> Iterator[tuple[int, str]]:
    """Comparisons with a variant's name: a string, one in a tuple of them, ``NAIVE.name`` or HIERARCHICAL."""
    tree = ast.parse(source)
    held = {
        target.id: node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Tuple | ast.List | ast.Set)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    constants = {name.upper(): name for name in names}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Compare | ast.MatchValue):
            continue
        sides = [node.left, *node.comparators] if isinstance(node, ast.Compare) else [node.value]
        sides = [held.get(side.id, side) if isinstance(side, ast.Name) else side for side in sides]
        for its in (its for side in sides for its in ast.walk(side)):
            if isinstance(its, ast.Constant) and its.value in names:
                yield node.lineno, str(its.value)
            elif isinstance(its, ast.Attribute) and its.attr == "name" and isinstance(its.value, ast.Name):
                if its.value.id in constants:
                    yield node.lineno, constants[its.value.id]
            elif isinstance(its, ast.Name) and its.id == "HIERARCHICAL":
                yield node.lineno, constants[its.id]


def test_what_a_variant_does_is_declared_and_not_decided_by_its_name() -> None:
    """Outside the algorithms themselves, so that a new variant needs no edit elsewhere."""
    from collectives.algorithms import catalog
    from collectives.contracts import COLLECTIVES

    names = {name for each in COLLECTIVES for name in catalog.variants(each, clusters=True)}
    assert {"all", "doubling", "hierarchical", "line", "naive", "zero_copy"} <= names
    files = [file for package in PACKAGES for file in (ROOT / package).rglob("*.py")]
    found = {
        (str(file.relative_to(ROOT)), name): line
        for file in files
        if ROOT / "collectives" / "algorithms" not in file.parents
        for line, name in decided_by_name(file.read_text(), names)
    }
    assert {where: line for where, line in found.items() if where not in OTHER_MEANINGS} == {}
    assert set(OTHER_MEANINGS) <= set(found), "a word that is compared with no longer"


@with_rows(
    ("variant == 'line'", ["line"]),
    ("(collective, variant) != ('all_to_all', 'zero_copy')", ["zero_copy"]),
    ("known = ('all', 'doubling')\nvariant in known", ["all", "doubling"]),
    ("call.algorithm == NAIVE.name", ["naive"]),
    ("variant == HIERARCHICAL", ["hierarchical"]),
    ("match variant:\n    case 'line': pass", ["line"]),
    ("spec.in_lines and said('line')", []),
)
def test_a_decision_by_name_is_found(source: str, names: list[str]) -> None:
    there = {"all", "doubling", "hierarchical", "line", "naive", "zero_copy"}
    assert [name for _, name in decided_by_name(source, there)] == names


def repeated_classes(root: Path) -> dict[str, list[str]]:
    """Public classes that several modules declare. Types in C are not counted: ``_native.Pacer`` names its module."""
    found: dict[str, list[str]] = {}
    for name, file in modules(root).items():
        if file.suffix == ".py":
            for node in ast.parse(file.read_text()).body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    found.setdefault(node.name, []).append(name)
    return {name: where for name, where in found.items() if len(where) > 1}


def test_a_public_class_name_has_one_meaning() -> None:
    found = repeated_classes(ROOT)
    assert {name: where for name, where in found.items() if name not in SAME_NAME} == {}
    assert set(SAME_NAME) <= set(found), "a name that is no longer repeated"


def test_a_class_name_with_two_meanings_is_found(tmp_path: Path) -> None:
    for package in PACKAGES[:2]:
        (tmp_path / package).mkdir()
        (tmp_path / package / "page.py").write_text("class Row: ...\nclass _Row: ...\n")
    (tmp_path / "cxlemu/only.py").write_text("class Only: ...\ndef f():\n    class Row: ...\n")
    assert repeated_classes(tmp_path) == {"Row": ["cxlemu.page", "collectives.page"]}


@pytest.mark.parametrize("group", ["commands", "simulate", "reproduce"])
def test_commands_that_packages_bring_are_there(group: str) -> None:
    for entry in entry_points(group=f"cxlemu.{group}"):
        for verb, (_, text, *_) in entry.load().items():
            command = load(f"cxlemu.{group}", verb)
            assert command is not None and command.name and text


def test_another_package_brings_a_command_a_figure_and_a_form(tmp_path: Path) -> None:
    """Two files: a module with the command, and a row of the table that an entry point names."""
    (tmp_path / "toy.py").write_text(
        "import click\ncommand = click.Command('toy', callback=lambda: click.echo('toy!'))\n"
        "other = click.Command('other', callback=lambda: click.echo('other!'))\n"
    )
    (tmp_path / "toy_table.py").write_text("VERBS = {'toy': ('toy', 'A toy.'), 'other': ('toy:other', 'Another.')}\n")
    groups = ("commands", "reproduce", "simulate")
    metadata = tmp_path / "toy-1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: toy\nVersion: 1\n")
    (metadata / "entry_points.txt").write_text("".join(f"[cxlemu.{its}]\ntoy = toy_table:VERBS\n" for its in groups))

    def said(*arguments: str) -> str:
        code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from cxlemu.cli import main; main({arguments!r})"
        return python("-c", code, code=0).stdout

    assert "toy" in said("--help") and "A toy." in said("reproduce", "--help")
    assert said("other") == said("simulate", "other") == "other!\n"
    assert said("toy") == said("reproduce", "toy") == said("simulate", "toy") == "toy!\n"


def test_every_package_brings_its_commands() -> None:
    assert {entry.name for entry in entry_points(group="cxlemu.commands")} >= set(PACKAGES)


@pytest.mark.parametrize("entry", entry_points(group="cxlemu.faults"), ids=lambda entry: entry.name)
def test_what_a_run_needs_of_faults_is_there(entry: object) -> None:
    assert callable(entry.load())  # type: ignore[attr-defined]


def test_the_version_is_said_once() -> None:
    """In cxlemu/version.py, and in the package's description, which pip reads before anything can be imported."""
    described = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert described == version.__version__ == cxlemu.__version__


PACKAGE_FILES = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("__init__.py"))]


@pytest.mark.parametrize("path", PACKAGE_FILES, ids=lambda path: path.parent.relative_to(ROOT).as_posix())
def test_a_package_says_which_of_its_names_are_public(path: Path) -> None:
    if path.parent.name == "torch":
        pytest.importorskip("torch")
    defined = ast.parse(path.read_text()).body
    names = {name for node in defined for name in names_of(node) if not name.startswith("_")}
    package = importlib.import_module(".".join(path.parent.relative_to(ROOT).parts))
    assert hasattr(package, "__all__") or not names
    assert all(hasattr(package, name) for name in getattr(package, "__all__", ()))


def names_of(node: ast.stmt) -> list[str]:
    """What a statement of a package defines; what it imports has its home elsewhere."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return [target.id for target in targets if isinstance(target, ast.Name)]


def test_the_front_has_what_programs_begin_with() -> None:
    for package in (cxlemu, collectives, faults):
        assert all(getattr(package, name) is not None for name in package.__all__)
        with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
            package.nothing  # noqa: B018
