"""What ``--backend`` offers: all backends and what each is, without importing those that come with cxlemu."""

import ast
from functools import cache
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple


class Offered(NamedTuple):
    """The backends' names, and the text of a flag's help with each summary, as `BACKENDS` of cxlemu.memory has them."""

    names: tuple[str, ...]
    help: str


@cache
def backends() -> Offered:
    """List all backends.

    Those that come with cxlemu are read, as importing them takes numpy; other packages' are imported.
    """
    if entry_points(group="cxlemu.backends"):
        from cxlemu.memory import BACKENDS

        return Offered(tuple(BACKENDS), BACKENDS.help())
    spec = find_spec("cxlemu.backends")
    files = sorted(Path(next(iter(spec.submodule_search_locations or ()))).glob("[!_]*.py")) if spec else []
    return Offered(
        tuple(file.stem for file in files), "; ".join(f"{file.stem}: {_summary(file)}" for file in files) + "."
    )


def _summary(file: Path) -> str:
    for node in ast.walk(ast.parse(file.read_bytes())):
        match node:
            case ast.Assign([ast.Name("summary")], ast.Constant(str(text))):
                return text
    return "without a summary"
