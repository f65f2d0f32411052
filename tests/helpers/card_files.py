"""Files that stand in for cards, and pools on them."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from uuid import UUID

from cxlemu.memory import MemorySpec
from cxlemu.pool.dax import map_all
from cxlemu.pool.format import format_cards, geometry_for
from tests.helpers import commands

MIB = 1 << 20


def blank_cards(directory: Path, count: int, nbytes: int = MIB, name: str = "card") -> list[str]:
    paths = [directory / f"{name}{index}" for index in range(count)]
    for path in paths:
        path.write_bytes(bytes(nbytes))
    return [str(path) for path in paths]


def pool_of(paths: Sequence[str], interleave_bytes: int = 4096, max_ranks: int = 16) -> UUID:
    mapped = map_all(paths)
    sizes = [card.pages.nbytes for card in mapped]
    return format_cards(mapped, geometry_for(sizes, interleave_bytes=interleave_bytes, max_ranks=max_ranks)).uuid


def real_cards(directory: Path, count: int = 2, nbytes: int = 8 * MIB) -> MemorySpec:
    """Memory on files that stand in for cards, with a pool on them."""
    paths = blank_cards(directory, count, nbytes)
    pool_of(paths)
    return MemorySpec("dax", devices=tuple(paths))


def device_flags(paths: Sequence[str]) -> list[str]:
    return [word for path in paths for word in ("--device", path)]


cxlemu = partial(commands.cxlemu, code=0)


@contextmanager
def unchanged(*directories: Path) -> Iterator[None]:
    """Byte for byte, and no file more."""

    def everything() -> dict[Path, bytes]:
        files = [path for directory in directories for path in directory.rglob("*")]
        return {path: path.read_bytes() for path in files if path.is_file() and not path.is_symlink()}

    before = everything()
    yield
    assert everything() == before
