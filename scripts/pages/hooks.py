"""What MkDocs asks while it builds the site: pages that the code declares, links and drawings as the site has them."""

from __future__ import annotations

import inspect
import re

import api_pages
import command_pages
import key_pages
import out_links
import sequence
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

_made: dict[str, str] = {}  # place -> Markdown
_hidden: dict[str, str] = {}  # the same, of pages that no menu lists


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Make the pages of the reference, and put them into the navigation."""
    assert config.nav is not None
    reference = next(group["Reference"] for group in config.nav if "Reference" in group)
    made = command_pages.pages()
    _made.update({f"reference/commands/{name}.md": text for name, text in made.items()})
    names = ["index", *(name for name in made if name != "index")]
    reference.append({"All commands": [f"reference/commands/{name}.md" for name in names]})
    reference.append({"All YAML keys": [f"reference/files/{name}.md" for name in key_pages.pages()]})
    packages = api_pages.pages()
    _made["reference/python/index.md"] = api_pages.index()
    _made.update({f"reference/python/{name}.md": text for room in packages.values() for name, text in room.items()})
    rooms = [{room: [f"reference/python/{name}.md" for name in made]} for room, made in packages.items()]
    reference.append({"All of Python": ["reference/python/index.md", *rooms]})
    try:
        _hidden.update(out_links.pages())
    except FileNotFoundError as error:
        raise PluginError(str(error)) from None
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that were made."""
    for place, text in _made.items():
        files.append(File.generated(config, place, content=text))
    for place, text in _hidden.items():
        files.append(File.generated(config, place, content=text, inclusion=InclusionLevel.NOT_IN_NAV))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Let links lead to pages of the site, and draw sequences."""
    if page.file.src_uri in _hidden or page.file.src_uri in _made:
        return markdown
    if page.file.src_uri == "glossary.md":
        markdown = terms(markdown)
        page.meta["search"] = {"boost": 4}  # before pages that only mention a term
    return sequence.drawn(out_links.rewritten(markdown, page.file.src_uri))


def terms(markdown: str) -> str:
    """Give each term of the glossary a heading, by which a search finds it."""
    return re.sub(
        r"(?m)^- \*\*(.+?)\*\*: ((?:.+\n)(?:  .+\n)*)",
        lambda item: f"### {item[1]}\n\n{inspect.cleandoc(item[2])}\n\n",
        markdown,
    )
