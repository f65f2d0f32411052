"""A page for every kind of YAML file: all keys with type, default and meaning, from the models that read them.

A model that several files share stands on the first page that has it, and an inherited key in its parent's section.

`python scripts/pages/key_pages.py` writes them to docs/reference/files; a test compares.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BeforeValidator
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from cxlemu.topology.accelerator import Accelerator
from cxlemu.topology.fields import Model
from cxlemu.topology.hierarchies import Hierarchy
from cxlemu.topology.parts import Parts
from cxlemu.units import parse_bytes
from faults.campaign.spec import Spec
from faults.inject.fault import FAULTS
from faults.inject.script import Script
from faults.litmus import language
from faults.torch.script import TrainingScript
from studies.tiering.workloads import Workload
from studies.training.language_model import LanguageModel

FIGURES = "A figure may [state its origin](index.md#figures)."
KINDS = "The keys that each kind needs and may have, and the requirement of a run; * only on emulated memory:"

# page -> (title, what is said first, the model of the whole file)
FILES: dict[str, tuple[str, str, type[Model]]] = {
    "fabrics": (
        "Fabrics",
        f"Under `fabrics` in a [topology](topology.md); see [fabrics](../../fabrics.md). {FIGURES}",
        Hierarchy,
    ),
    "topology": ("Topologies", f"Read by `-c`; see [topologies](../../topologies.md). {FIGURES}", Parts),
    "accelerator": ("Accelerators", f"Named by a topology's `accelerator`. {FIGURES}", Accelerator),
    "faults": ("Fault scripts", "Read by `--faults`; see [faults](../../faults.md).", Script),
    "training-faults": (
        "Fault scripts of training",
        "Read by `cxlemu torchrun --faults`; see [PyTorch](../../pytorch.md#under-test-cxlemu-torchrun).",
        TrainingScript,
    ),
    "campaign": ("Campaigns", "Read by `cxlemu faults campaign`; see [campaigns](../../faults.md#campaigns).", Spec),
    "language-model": (
        "Language models",
        f"Read by `cxlemu simulate training`; see [modelled training](../../modelled-training.md). {FIGURES}",
        LanguageModel,
    ),
    "memory-workload": (
        "Memory workloads",
        f"Read by `cxlemu simulate memory`; see [tiers](../../tiers.md). {FIGURES}",
        Workload,
    ),
}
FOLDER = Path(__file__).parents[2] / "docs" / "reference" / "files"
MILLION = 10**6  # bounds from there on only refuse nonsense
PLAIN = {int: "integer", float: "number", bool: "true or false", str: "text", Any: "anything"}


def pages() -> dict[str, str]:
    """Make the pages by name, and `index`."""
    made = {"index": ""}
    for name, (title, first, model) in FILES.items():
        sections = "\n".join(
            section(each, whole=each is model is not Hierarchy) for each in below(model) if home(each) == name
        )
        made[name] = f"# {title}\n\n{first.strip()}\n\n{sections}"
    made["faults"] += faults()
    made["litmus"] = litmus()
    names = {**{name: title for name, (title, _, _) in FILES.items()}, "litmus": "Litmus tests"}
    made["index"] = (
        "# YAML files\n\nEvery key that a file may have. Others are refused, with file and line; so are aliases,\n"
        "tags, duplicate keys, and files of more than 256 KiB.\n\n"
        + "\n".join(f"- [{title}]({name}.md)" for name, title in names.items())
        + "\n\nThe end of a key names its unit; 1 GB/s is 10^9 bytes per second. Bounds of a million and more are not\n"
        "shown. A size is a number of bytes, or has a suffix, all powers of 1024: `4K`, `128GiB`.\n\n## Figures\n\n"
        'A figure may state its origin: `latency_ns: {value: 214, source: "..."}`, or `fitted`, or `assumed`. With\n'
        "`hardware: NAME` a file takes figures from a hardware file, in `configs/hardware` or beside it:\n"
        "`like: ENTRY` in a mapping adds the keys of the entry that the mapping lacks.\n"
    )
    return made


def below(model: type[Model]) -> list[type[Model]]:
    """List a model, the kinds of a fabric, and all that their fields are made of, with their parents, each once."""
    found = [model]
    for each in found:
        parts: list[type[Model]] = list(each.__subclasses__()) if issubclass(each, Hierarchy) else []
        parts += filter(None, [parent(each)])
        for field in each.model_fields.values():
            parts += models(field.annotation)
        found += [part for part in dict.fromkeys(parts) if part not in found]
    return found


def parent(model: type[Model]) -> type[Model] | None:
    """The nearest class that a model inherits keys from."""
    return next((base for base in model.__mro__[1:] if issubclass(base, Model) and base.model_fields), None)


@cache
def home(model: type[Model]) -> str:
    """The page on which a model stands: the first that has it."""
    return next(name for name, (_, _, whole) in FILES.items() if model in below(whole))


def link(model: type[Model]) -> str:
    """A link to a model's section, from any page."""
    return f"[{model.__name__}]({home(model)}.md#{model.__name__.lower()})"


def models(annotation: Any) -> Iterator[type[Model]]:
    """Yield the models in an annotation, however deep."""
    if inspect.isclass(annotation) and issubclass(annotation, Model):
        yield annotation
    for inner in get_args(annotation):
        yield from models(inner)


def section(model: type[Model], *, whole: bool) -> str:
    """The keys of one mapping, as a table."""
    heading = "" if whole else f"## {model.__name__}\n\n"
    about = re.sub(r"``(.*?)``", r"`\1`", inspect.getdoc(model) or "")
    about = re.sub(r"\n\n(Args|Attributes):.*", "", about, flags=re.DOTALL) + "\n\n"
    above = parent(model)
    about = "" if model is Parts else about + (f"All keys of {link(above)}, and:\n\n" if above else "")
    rows = [row(model, key, field) for key, field in own(model).items()]
    return f"{heading}{about}| key | type | default | meaning |\n|---|---|---|---|\n" + "\n".join(rows) + "\n"


def own(model: type[Model]) -> dict[str, FieldInfo]:
    """The keys that a model's parent does not have, or not so."""
    above = parent(model)
    inherited = above.model_fields if above else {}
    return {key: field for key, field in model.model_fields.items() if repr(field) != repr(inherited.get(key))}


def row(model: type[Model], key: str, field: FieldInfo) -> str:
    """One key's row: its type with bounds, its default, what it means."""
    kind, bounds = told(Annotated[field.annotation, *field.metadata] if field.metadata else field.annotation)
    says = re.sub(r",? in (ns|GB/s|watts|US dollars)$", "", field.description or "")
    if get_origin(field.annotation) is Literal and len(get_args(field.annotation)) == 1:
        says = says or f"what makes it a {model.__name__}"
    kind = re.sub(r"≥(\S+), ≤(\S+?)(?=[,)]|$)", r"\1-\2", ", ".join([kind, *bounds]))
    kind = re.sub(r"at least (\d+), at most (\d+)", r"\1-\2 long", kind)
    cells = f"`{key}`", kind, default(field), says
    return "| " + " | ".join(cell.replace("|", "&#124;") for cell in cells) + " |"


def default(field: FieldInfo) -> str:
    """What counts where the key is absent."""
    if field.is_required():
        return "**required**"
    value = field.get_default(call_default_factory=True, validated_data={})
    if value is None or value is PydanticUndefined:
        return ""
    if isinstance(value, Model):
        return "all absent"
    if isinstance(value, tuple):
        return f"`[{', '.join(map(str, value))}]`"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`" if value != "" else "empty"


def told(annotation: Any) -> tuple[str, list[str]]:
    """Say an annotation in words: the type, and its bounds."""
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        kind, bounds = told(inner[0])
        marks = [mark for each in inner[1:] for mark in (each.metadata if isinstance(each, FieldInfo) else [each])]
        bounds += [words for mark in marks for words in bound(mark)]
        size = any(isinstance(mark, BeforeValidator) and mark.func is parse_bytes for mark in marks)
        return "size" if size else kind, bounds
    if origin in (Union, UnionType):
        parts = [told(part) for part in inner if part is not NoneType]
        return " or ".join(part[0] for part in parts), parts[0][1] if len(parts) == 1 else []
    if origin is Literal:
        return " or ".join(f"`{value}`" for value in inner), []
    if origin is tuple:
        kind, bounds = told(inner[0])
        return f"list of {kind}" + (f" ({', '.join(bounds)})" if bounds else ""), []
    if inspect.isclass(annotation) and issubclass(annotation, Model):
        return link(annotation), []
    return PLAIN[annotation], []


def bound(mark: Any) -> Iterator[str]:
    """Yield what a mark of pydantic demands of a value, in words."""
    for name, sign in {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}.items():
        if (value := getattr(mark, name, None)) is not None and value < MILLION:
            yield f"{sign}{short(value)}"
    for name, words in {"min_length": "at least", "max_length": "at most"}.items():
        if value := getattr(mark, name, None):
            yield f"{words} {value}"


def short(value: float) -> str:
    """A bound as people write it: 2^40, 10^9."""
    if isinstance(value, int) and value > 1 << 16 and value.bit_count() == 1:
        return f"2^{value.bit_length() - 1}"
    if value >= 10**5 and str(int(value)).strip("0") == "1":
        return f"10^{len(str(int(value))) - 1}"
    return f"{value:g}" if isinstance(value, float) else str(value)


def faults() -> str:
    """The kinds of faults, which say what keys a fault has."""
    lines = [
        "\n## Kinds of faults\n",
        KINDS,
        "",
        "| kind | what happens | needs | may have | a run must |",
        "|---|---|---|---|---|",
    ]
    for name, kind in FAULTS.items():
        needs, may = (", ".join(f"`{key}`" for key in keys) for keys in (kind.needs, kind.may))
        only = "*" if kind.emulated else ""
        lines.append(f"| `{name}`{only} | {kind.what} | {needs} | {may} | {kind.requirement.value} |")
    return "\n".join(lines) + "\n"


def litmus() -> str:
    """The keys of a litmus test and its steps, from the tables that its reader has."""
    lines = ["# Litmus tests\n", "Read by `cxlemu litmus`; see [protocols](../../litmus.md).\n"]
    lines += ["| key | type | default | meaning |", "|---|---|---|---|"]
    for key, (kind, required, about) in language.KEYS.items():
        lines.append(f"| `{key}` | {language.KINDS[kind]} | {'**required**' if required else ''} | {about} |")
    most = language.RANKS_MAX, language.STEPS_MAX, language.WORDS_MAX, language.VALUE_MAX
    lines.append("\nAt most {} ranks, {} steps of each, {} words; values from 0 to {}.\n".format(*most))
    lines += ["## Steps\n", "| step | meaning |", "|---|---|"]
    for verb, (_, takes, about) in language.VERBS.items():
        lines.append(f"| `{' '.join([verb, *map(str.upper, takes)])}` | {about} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, text in pages().items():
        (FOLDER / f"{name}.md").write_text(text)
