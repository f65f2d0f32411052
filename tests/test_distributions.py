"""What is published: the source distribution holds what the repository has, the README's links lead somewhere."""

import importlib.machinery
import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.helpers.commands import python

ROOT = Path(__file__).parents[1]


def script() -> ModuleType:
    loader = importlib.machinery.SourceFileLoader("wheels", str(ROOT / "scripts" / "wheels"))
    spec = importlib.util.spec_from_loader("wheels", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def test_links_of_the_readme_become_absolute() -> None:
    wheels, url = script(), "https://example.org/people/cxlemu"
    readme = (ROOT / "README.md").read_text()
    found = wheels.absolute(readme, url)
    assert f'src="{url}/raw/main/docs/images/stale-read.svg"' in found
    assert f"]({url}/blob/main/docs/index.md)" in found
    assert not wheels.RELATIVE.search(found)
    assert (
        wheels.absolute("[a](#b) [c](https://d) [e](f.md#g)", url)
        == f"[a](#b) [c](https://d) [e]({url}/blob/main/f.md#g)"
    )


@pytest.mark.parametrize("url", ["cxlemu", "http://example.org/a", "https://example.org", 'https://a.b/c"d'])
def test_what_is_no_repository_is_refused(url: str) -> None:
    done = python(ROOT / "scripts" / "wheels", "--url", url, code=2)
    assert "is no address of a repository" in done.stderr


MADE = shutil.ignore_patterns(".*", "build", "dist", "*.so", "*.egg-info", "__pycache__", "*.log", "plots")


@pytest.mark.deep
def test_the_source_distribution_holds_what_the_repository_has(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    shutil.copytree(ROOT, tree, ignore=MADE)
    build = "import setuptools.build_meta as b; print(b.build_sdist('..'))"
    subprocess.run([sys.executable, "-c", build], cwd=tree, check=True, capture_output=True)
    [sdist] = tmp_path.glob("*.tar.gz")
    listed = subprocess.run(["tar", "tzf", sdist], capture_output=True, text=True, check=True).stdout.split()
    names = {name.partition("/")[2] for name in listed}
    files = {str(its.relative_to(tree)) for its in tree.rglob("*") if its.is_file() and "egg-info" not in str(its)}
    assert files - names == set()
