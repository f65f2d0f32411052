"""Links out of docs/ lead into the repository; the site has the files that they lead to, as pages."""

from __future__ import annotations

import ast
import posixpath
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
_LINK = re.compile(r"\]\((\.\./[^)#\s]+?)/?(#[^)\s]*)?\)")
LANGUAGES = {".py": "python", ".pyi": "python", ".c": "c", ".h": "c", ".yaml": "yaml", ".toml": "toml", ".sh": "bash"}


def page_of(path: str) -> str:
    """The page that shows a file or a folder of the repository."""
    return "readme.md" if path == "README.md" else f"source/{path.replace('.', '-')}.md"


def rewritten(text: str, uri: str) -> str:
    """Let a page's links out of docs/ lead to pages of the site.

    Args:
        text: A page of docs/, as Markdown.
        uri: Where it stands in docs/.
    """

    def there(link: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(uri), link[1])).rstrip("/")
        if path.startswith("docs/"):
            return link[0]
        return f"]({posixpath.relpath(page_of(path), posixpath.dirname(uri) or '.')}{link[2] or ''})"

    return _LINK.sub(there, text)


def pages() -> dict[str, str]:
    """Make the pages of all that docs/ link to, and of the README: by their place on the site.

    Raises:
        FileNotFoundError: A link leads to nothing.
    """
    made = {"readme.md": readme()}
    wanted = {
        posixpath.normpath(posixpath.join("docs", link[1])).rstrip("/")
        for page in (ROOT / "docs").glob("*.md")
        for link in _LINK.finditer(page.read_text())
    } - {"README.md"}
    while wanted:
        path = wanted.pop()
        if page_of(path) in made:
            continue
        if not (ROOT / path).exists():
            raise FileNotFoundError(f"a page in docs/ has a link to {path}, which is not in the repository")
        if (ROOT / path).is_dir():
            made[page_of(path)], more = folder(path)
            wanted |= more
        else:
            made[page_of(path)] = file(path)
    return made


def readme() -> str:
    """The README, whose links lead into docs/."""
    text = (ROOT / "README.md").read_text()
    return text.replace("](docs/", "](").replace('src="docs/', 'src="').replace("# cxlemu", "# README", 1)


def file(path: str) -> str:
    """A page that shows a file."""
    language = LANGUAGES.get(Path(path).suffix, "text")
    return f"{HEAD}# {path}\n\n`````{language}\n{(ROOT / path).read_text().rstrip()}\n`````\n"


def folder(path: str) -> tuple[str, set[str]]:
    """A page that lists the files of a folder, and the files."""
    lines, more = [], set()
    for each in sorted((ROOT / path).iterdir()):
        if each.suffix in LANGUAGES or each.suffix == ".md":
            inside = each.relative_to(ROOT).as_posix()
            here = posixpath.relpath(page_of(inside), posixpath.dirname(page_of(path)))
            lines.append(f"- [`{each.name}`]({here}){': ' + about if (about := said(each)) else ''}")
            more.add(inside)
    return f"{HEAD}# {path}/\n\n" + "\n".join(lines) + "\n", more


def said(path: Path) -> str:
    """The first line of a module's docstring."""
    text = ast.get_docstring(ast.parse(path.read_text())) if path.suffix == ".py" else None
    return re.sub(r"([*_<>\[\]])", r"\\\1", text.splitlines()[0]) if text else ""


HEAD = "---\nsearch:\n  exclude: true\nhide: [navigation]\n---\n\n"
"""Of pages that stand in no group of the navigation."""
