"""The documentation site: it builds without a warning, has all commands, and fetches nothing when it is read."""

import importlib.util
import os
import re
import subprocess
import sys
from html import unescape
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]


def page_maker(name: str) -> ModuleType:
    """Import a module of scripts/pages, which is no package: MkDocs loads it by its path."""
    spec = importlib.util.spec_from_file_location(f"pages_{name}", ROOT / "scripts" / "pages" / f"{name}.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_every_page_stands_in_one_of_four_groups() -> None:
    nav = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2]
    assert re.findall(r"(?m)^  - ([\w-]+):", nav) == ["Home", "Tutorial", "How-to", "Reference", "Explanation"]
    listed = re.findall(r"[\w-]+\.md", nav)
    assert sorted(listed) == sorted(page.name for page in (ROOT / "docs").glob("*.md"))


def test_links_out_of_docs_lead_to_pages_of_the_site() -> None:
    out_links = page_maker("out_links")
    text = "[a](../cxlemu/units.py) [b](../README.md#install) [c](../configs/) [d](running.md)"
    there = "[a](source/cxlemu/units-py.md) [b](readme.md#install) [c](source/configs.md) [d](running.md)"
    assert out_links.rewritten(text, "index.md") == there
    pages = out_links.pages()

    linked = {
        link for page in (ROOT / "docs").glob("*.md") for link in re.findall(r"\]\(\.\./([^)#]+)", page.read_text())
    }
    assert {out_links.page_of(link.rstrip("/")) for link in linked} <= set(pages)


def test_a_sequence_is_drawn_and_what_cannot_be_drawn_is_refused() -> None:
    sequence = page_maker("sequence")
    source = "sequenceDiagram\n    participant A as one <host>\n    participant B as two\n    A->>B: x\n    B-->>A: y\n"
    svg = sequence.drawn(f"before\n```mermaid\n{source}```\nafter\n")
    assert "```" not in svg and "one &lt;host&gt;" in svg and svg.count('marker-end="url(#head)"') == 2
    assert svg.count("stroke-dasharray") == 1
    with pytest.raises(ValueError, match="flowchart"):
        sequence.picture("flowchart\n  A --> B")
    with pytest.raises(ValueError, match="Note over A"):
        sequence.picture(source + "    Note over A: z")


def test_every_yaml_key_says_what_it_is() -> None:
    key_pages = page_maker("key_pages")
    pages = key_pages.pages()
    for _, _, whole in key_pages.FILES.values():
        for model in key_pages.below(whole):
            for key, field in model.model_fields.items():
                row = key_pages.row(model, key, field)
                above = key_pages.parent(model)
                inherited = above is not None and key not in key_pages.own(model)
                assert row in pages[key_pages.home(model)] or (inherited and key in above.model_fields), row
                *_, default, meaning, _ = (cell.strip() for cell in row.split(" |"))
                assert meaning, f"{model.__name__}.{key} needs a description"
                assert (default == "**required**") == field.is_required()


def test_pages_of_yaml_keys_are_those_that_the_models_make() -> None:
    key_pages = page_maker("key_pages")
    there = {page.stem: page.read_text() for page in key_pages.FOLDER.iterdir()}
    assert there == key_pages.pages(), "write them again: python scripts/pages/key_pages.py"


def test_rows_of_yaml_keys_say_type_bounds_and_default() -> None:
    pages = page_maker("key_pages").pages()
    row = "| `card_bytes` | size, >0 | **required** | size of the memory behind each card"
    assert row in pages["topology"]
    assert "| `routing` | `first` or `spread` | `first` | choice among several" in pages["topology"]
    assert "| `seed` | integer, ≥0 | `0` | seed of all" in pages["faults"]
    assert (
        "| `stall` |" in pages["faults"] and "| `sizes` | list of size (≥0), 1-100 long | `[600]`" in pages["campaign"]
    )
    assert "All keys of [Hierarchy](fabrics.md#hierarchy), and:" in pages["fabrics"]
    assert "| `latency_ns` | integer, ≥0 | **required** | latency one way |" in pages["fabrics"]
    assert "| `hosts` | a mapping | **required** |" in pages["litmus"] and "| `load WORD REGISTER` |" in pages["litmus"]


def test_the_page_of_a_package_begins_with_its_public_names() -> None:
    pytest.importorskip("torch", reason='pip install "cxlemu[torch]"')  # the pages have its backend's names, too
    made = page_maker("api_pages").pages()
    text = made["cxlemu"]["cxlemu"]
    rows = re.findall(r"(?m)^\| \[`cxlemu\.(\w+)`\]\[", text.partition(":::")[0])
    assert rows == ["RankContext", "Topology", "launch"]
    assert "| import |" not in made["studies"]["studies.peers"]  # which says of no name that it is public


@pytest.mark.deep
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    for module in ("mkdocs", "material", "mkdocstrings_handlers.python"):
        pytest.importorskip(module, reason='pip install -e ".[docs]"')
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    site = tmp_path / "site"
    done = subprocess.run([ROOT / "scripts" / "site", site], env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    assert done.stdout == f"{site}/index.html\n"

    fetched = re.compile(r'(?:src|<link[^>]+href|url\()\s*=?\s*"?(?:https?:)?//')
    for file in [*site.rglob("*.html"), *site.rglob("*.css")]:
        assert not fetched.search(re.sub(r"<pre>.*?</pre>", "", file.read_text(), flags=re.DOTALL)), file
    for module in ("cxlemu.topology.model.Topology", "collectives.communicator.communicator.Communicator"):
        package = module.rsplit(".", 2)[0]
        assert f'id="{module}"' in (site / "reference" / "python" / f"{package}.html").read_text()
    assert '<script src="../../iframe-worker.js"' in (site / "reference" / "files" / "litmus.html").read_text()
    search = (site / "search" / "search_index.js").read_text()  # without a server
    assert re.search(r'"glossary.html#doorbell","title":"doorbell"[^{}]*"boost":4', search)
    step = "<dt><code>-f, --stepfactor N</code></dt>\n<dd>Multiply the size by N for each row. Default:"
    assert step in (site / "reference" / "commands" / "run.html").read_text()
    commands = page_maker("command_pages")
    for name, command in commands.forms("cxlemu", commands.main):
        if name != "cxlemu":
            text = unescape((site / "reference" / "commands" / f"{name.split()[1]}.html").read_text())
            assert f"<code>{name} [" in text or f"<code>{name}\n" in text or f"<code>{name} " in text, name
            written = [flag for param in command.params if not getattr(param, "hidden", False) for flag in param.opts]
            assert [flag for flag in written if flag.startswith("-") and flag not in text] == [], name
