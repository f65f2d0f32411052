"""What the checker found in the runs of a program: each mistake once, its lines, and the missing instruction."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from cxlemu.memory.line import LINE_BYTES
from cxlemu.version import __version__
from faults.programs.chain import Chain, chain
from faults.programs.findings import (
    KINDS,
    NOT_LINEARIZABLE,
    ROLES,
    STATED,
    MistakeKind,
    ProgramFinding,
    merged,
    one_mistake,
)
from faults.programs.histories import LoggedOperation, words_of
from faults.programs.positions import NOWHERE, AccessPlace, SourcePlace, located
from faults.programs.suppressions import Suppression

# In the order of the chain; {by} is the other host, {host} the one that goes wrong.
_SAYS = {
    "store": "{by} stores",
    "flush": "{by} flushes",
    "fence": "{by} fences",
    "published": "{by} publishes",
    "told": "{host} learns of it",
    "drop": "{host} invalidates",
    "drop_fence": "{host} fences",
    "access": "{host} {does}",
    "arrives": "{by} lets it arrive",
}
_DOES = {
    "two-writers": "stores",
    "residue": "stores",
    "older-write": "stores",
    "stale-allocate": "stores",
    "locked-across-hosts": "changes it",
    "flush-outside": "flushes",
    "msync": "calls msync",
    "assertion": "asserts",
    "invariant": "declares it",
    "not-linearizable": "begins",
}
_UNFLUSHED = ("not-flushed", "msync", "copy-not-ended")  # their stores are dirty in the end, too
_BEFORE_ACCESS = ("fence-too-late",)  # there the fence comes after what publishes


def _values(finding: ProgramFinding) -> str:
    """Write the bytes of a finding as words of 8 bytes, or as bytes where they are none."""
    whole = finding.offset % 8 == 0 and len(finding.seen) % 8 == 0
    size = 8 if whole else 1
    words = [int.from_bytes(finding.seen[k : k + size], "little") for k in range(0, len(finding.seen), size)]
    told = max((k + 1 for k, word in enumerate(words) if word), default=1)
    values = " ".join(f"0x{word:x}" for word in words[:told])
    return ("words " if whole else "bytes ") + values + (" and zeros" if told < len(words) else "")


@dataclass(frozen=True)
class Checked:
    """A run that the checker watched."""

    findings: Sequence[ProgramFinding]
    places: Sequence[AccessPlace]  # what the findings' positions mean
    name: str  # the run in words: ``seed 3``
    replay: str = ""  # the command that makes it again; empty: there is none
    ended: bool = True  # whether all programs ended by themselves, and well; else flushes may have been still to come
    history: Sequence[LoggedOperation] = ()  # those that no order explains


@dataclass(frozen=True)
class ProgramMistake:
    """A mistake of a program."""

    kind: MistakeKind
    finding: ProgramFinding  # how it was first found; a run with wrong bytes before one without
    places: Mapping[str, SourcePlace]  # for each role that is known its position
    pool: str
    run: str  # the run that it was first found in
    replay: str  # the command that makes this run again; empty: there is none
    found_in: frozenset[int] = frozenset()  # the numbers of those runs that it was found in
    times: int = 1  # how often in all of them
    reason: str = ""  # why it is suppressed; empty: it is not
    more: tuple[tuple[str, SourcePlace], ...] = ()  # further stores and loads of this mistake, each with its role
    history: Sequence[LoggedOperation] = ()  # those that no order explains

    @property
    def runs(self) -> int:
        """In how many runs it was found."""
        return len(self.found_in)

    @property
    def host(self) -> str:
        """The host that goes wrong."""
        return f"host {self.finding.host}"

    @property
    def by(self) -> str:
        """The other host."""
        return f"host {self.finding.other_host}" if self.finding.other_host != 255 else "nobody"

    @property
    def line(self) -> str:
        """The line, in words."""
        if self.finding.pool == 255:
            return f"address 0x{self.finding.offset:x}"
        return f"byte 0x{self.finding.offset:x} of {self.pool} (line {self.finding.offset // LINE_BYTES})"

    @property
    def sentence(self) -> str:
        """What is wrong, in the prover's words."""
        if self.finding.publishes_itself:
            return f"{self.host} reads {self.line}, part of a store of which only another line had reached it"
        if self.finding.flush_late:
            return f"{self.host} reads {self.line}, which {self.by} flushed only after it had published it"
        if self.finding.stuck:
            waits, yet = ("may wait", "has not shown") if self.finding.so_far else ("waits", "never shows")
            return f"{self.host} {waits} for ever: it reads {self.line} again and again, and {self.by}'s store {yet}"
        said = self.kind.sentence.format(host=self.host, by=self.by, line=self.line)
        return f"{said}: {_values(self.finding)}" if self.finding.seen else said

    @property
    def shows(self) -> str:
        """Whether the run itself went wrong."""
        if self.finding.stuck:
            return f"the run {'was ended at its deadline' if self.finding.so_far else 'hangs'} ({self.run})"
        if self.kind.rule in ("landed", "fresh", "order"):
            wrong = f"old bytes were read in this run ({self.run})"
            return (
                wrong if self.finding.manifest else f"right in this run ({self.run}); another execution reads old bytes"
            )
        return f"in this run ({self.run})"

    @property
    def missing(self) -> str:
        """The instruction that would repair it."""
        if self.finding.sfence:
            return "mfence in place of sfence: later loads may pass an sfence (cxl_invalidate has the right one)"
        if self.finding.publishes_itself:
            return "a wait, before the load, for a store that is made after the flush and the fence of this one"
        if self.finding.stuck:  # what is published is the store itself
            at_each = self.kind.missing.replace("load, after learning of the store", "load, each time")
            return at_each.replace(", before it is published", "").replace(" and the store that publishes it", "")
        if self.finding.by_start:
            return self.kind.missing.replace("before it is published", "before the process ends")
        return self.kind.missing

    def steps(self) -> Iterator[tuple[str, str, SourcePlace]]:
        """Yield each known step of the chain: its role, who does what, and where."""
        order = list(_SAYS)
        if self.kind.name in _BEFORE_ACCESS:
            order.remove("fence")
            order.insert(order.index("published") + 1, "fence")
        does = _DOES.get(self.kind.name, "loads")
        for role in order:
            if role in self.places:
                yield role, _SAYS[role].format(host=self.host, by=self.by, does=does), self.places[role]

    def all_steps(self) -> Iterator[tuple[str, str, SourcePlace]]:
        """Yield the same, and behind each step the further ones of its role."""
        for role, says, place in self.steps():
            yield role, says, place
            yield from ((role, says, other) for at_role, other in self.more if at_role == role)

    def chain(self) -> Chain | None:
        """Write the chain as litmus tests; None where there is none."""
        return chain(self.finding, {role: str(place.at) for role, _, place in self.steps()})


@dataclass(frozen=True)
class ProgramReport:
    """What was found in all runs."""

    mistakes: Sequence[ProgramMistake]  # those that count, each once: as they were found, statements of programs last
    suppressed: Sequence[ProgramMistake] = ()  # those that a suppression matches, each with its reason
    warnings: Sequence[ProgramMistake] = ()  # those that do not fail a run
    unused: Sequence[Suppression] = field(default=())  # suppressions that matched nothing
    runs: int = 0  # how many runs there were


def report(runs: Iterable[Checked], pools: Sequence[str], suppressions: Sequence[Suppression] = ()) -> ProgramReport:
    """Join what was found in all runs: each mistake once, by its kind and the lines and callers of store and access."""
    joined: dict[tuple[str, ...], ProgramMistake] = {}
    count = 0
    for run in runs:
        count += 1
        for mistake in _of_run(run, count, pools):
            key = (
                KINDS[one_mistake(mistake.finding.kind)].name,
                *(str(mistake.places.get(role)) for role in ("store", "access")),
            )
            known = joined.get(key)
            if known is None:
                joined[key] = mistake
                continue
            first = max(
                known, mistake, key=lambda its: (its.finding.manifest, its.kind.name == key[0])
            )  # of equals, ``known``
            found_in, times = known.found_in | mistake.found_in, known.times + mistake.times
            joined[key] = replace(first, found_in=found_in, times=times)
    mistakes: list[ProgramMistake] = []
    warnings: list[ProgramMistake] = []
    suppressed: list[ProgramMistake] = []
    used: set[Suppression] = set()
    for mistake in joined.values():
        matching = [
            suppression
            for suppression in suppressions
            if suppression.matches(mistake.kind.name, mistake.places.values())
        ]
        if not matching:
            (warnings if mistake.finding.warns else mistakes).append(mistake)
        else:
            used.update(matching)
            suppressed.append(replace(mistake, reason=matching[0].reason))
    mistakes = sorted(_together(mistakes), key=lambda its: its.kind.rule in STATED)  # causes come first
    warnings = _together(warnings)
    return ProgramReport(
        mistakes, suppressed, warnings, [suppression for suppression in suppressions if suppression not in used], count
    )


def _is_one(a: ProgramMistake, b: ProgramMistake) -> bool:
    """Tell whether one instruction is missing in both.

    It is where both have the side at fault in common; or the other side, and how the reader learned of the stores.
    Of two writers either side is at fault: a loop that stores to neighbours meets stores from several places.
    """
    if a.kind == b.kind and a.kind.rule == "false_sharing":
        return bool(_stores(a) & _stores(b))
    own = {"landed": "store", "fresh": "access"}.get(a.kind.rule)
    if own is None or a.kind != b.kind:
        return False

    def same(role: str) -> bool:
        return a.places.get(role) == b.places.get(role) is not None

    return same(own) or (same("access" if own == "store" else "store") and same("published") and same("told"))


def _stores(mistake: ProgramMistake) -> set[SourcePlace]:
    return {mistake.places[role] for role in ("store", "access") if role in mistake.places} - {NOWHERE}


def _together(mistakes: Sequence[ProgramMistake]) -> list[ProgramMistake]:
    """Join findings of one mistake into one, with all its stores and loads."""
    groups: list[list[ProgramMistake]] = []
    for mistake in mistakes:
        first, *others = [group for group in groups if any(_is_one(mistake, one) for one in group)] or [[]]
        first.extend((*(one for group in others for one in group), mistake))
        groups = [group for group in groups if group not in others]
        if first == [mistake]:
            groups.append(first)
    return [_joined(group) for group in groups]


def _joined(group: Sequence[ProgramMistake]) -> ProgramMistake:
    first = max(group, key=lambda mistake: mistake.finding.manifest)
    places = {
        (role, mistake.places[role]): None
        for mistake in group
        for role in ("store", "access")
        if role in mistake.places
    }
    more = tuple(place for place in places if first.places.get(place[0]) != place[1])
    found_in = frozenset[int]().union(*(mistake.found_in for mistake in group))
    return replace(first, more=more, found_in=found_in, times=sum(mistake.times for mistake in group))


def _of_run(run: Checked, number: int, pools: Sequence[str]) -> Iterator[ProgramMistake]:
    findings = merged(list(run.findings))
    sites = sorted({site for finding in findings for site in finding.sites if 0 < site < len(run.places)})
    known = dict(zip(sites, located([run.places[site] for site in sites]), strict=True))
    unflushed = {finding.site("store") for finding in findings if KINDS[finding.kind].name in _UNFLUSHED}
    for finding in findings:
        if KINDS[finding.kind].rule == "exit" and (not run.ended or finding.site("store") in unflushed):
            continue
        places = {role: place for role in ROLES if (place := known.get(finding.site(role))) is not None}
        if not finding.site("store") and finding.numbers[ROLES.index("store")]:
            places["store"] = NOWHERE
        pool = pools[finding.pool] if finding.pool < len(pools) else "no pool"
        history = run.history if finding.kind == NOT_LINEARIZABLE else ()
        kind = KINDS[finding.kind]
        found_in = frozenset({number})
        yield ProgramMistake(
            kind, finding, places, pool, run.name, run.replay, found_in, finding.times, history=history
        )


# --- JSON and SARIF --------------------------------------------------------------------------------------------------


def as_json(told: ProgramReport) -> dict[str, Any]:
    return {
        "version": __version__,
        "runs": told.runs,
        "findings": [_plain(mistake) for mistake in told.mistakes],
        "warnings": [_plain(warning) for warning in told.warnings],
        "suppressed": [{**_plain(mistake), "reason": mistake.reason} for mistake in told.suppressed],
        "unused_suppressions": [{"line": rule.line, "kind": rule.kind, "where": rule.where} for rule in told.unused],
    }


def _plain(mistake: ProgramMistake) -> dict[str, Any]:
    finding, its_chain = mistake.finding, mistake.chain()
    return {
        "kind": mistake.kind.name,
        "rule": mistake.kind.rule,
        "sentence": mistake.sentence,
        "missing": mistake.missing,
        "wrong_in_this_run": finding.manifest,
        "hangs": finding.stuck and not finding.so_far,
        "host": finding.host,
        "other_host": None if finding.other_host == 255 else finding.other_host,
        "pool": mistake.pool,
        "offset": finding.offset,
        "step": finding.number,
        "run": mistake.run,
        "runs": mistake.runs,
        "times": mistake.times,
        "replay": mistake.replay,
        "steps": [{"role": role, "does": says, **_placed(place)} for role, says, place in mistake.all_steps()],
        "litmus": its_chain.broken if its_chain else None,
        "history": words_of(mistake.history),
    }


def _placed(place: SourcePlace) -> dict[str, Any]:
    offset = {"file": place.at.file, "line": place.at.line, "function": place.at.function, "offset": place.at.offset}
    callers = [{"file": caller.file, "line": caller.line, "function": caller.function} for caller in place.callers]
    return {**offset, "called_from": callers[0] if callers else None, "callers": callers}


_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def as_sarif(told: ProgramReport) -> dict[str, Any]:
    """Give a report as SARIF 2.1.0, which editors and code hosts show at the lines."""
    rules = [
        {
            "id": kind.name,
            "shortDescription": {"text": kind.title},
            "help": {"text": f"Missing: {kind.missing}." if kind.missing else kind.title},
            "properties": {"rule": kind.rule},
        }
        for kind in KINDS.values()
    ]
    order = [kind.name for kind in KINDS.values()]
    driver = {"name": "cxlemu", "version": __version__, "rules": rules}
    results = [_result(mistake, order) for mistake in (*told.mistakes, *told.warnings, *told.suppressed)]
    return {"$schema": _SCHEMA, "version": "2.1.0", "runs": [{"tool": {"driver": driver}, "results": results}]}


def _result(mistake: ProgramMistake, order: list[str]) -> dict[str, Any]:
    steps = list(mistake.all_steps())
    roles = (mistake.kind.repaired_at, "access", "store")
    main = next((mistake.places[role] for role in roles if role in mistake.places), None)
    result: dict[str, Any] = {
        "ruleId": mistake.kind.name,
        "ruleIndex": order.index(mistake.kind.name),
        "level": "warning" if mistake.finding.warns else "error",
        "message": {"text": ". ".join([mistake.sentence, *_missing(mistake), *words_of(mistake.history)])},
        "locations": [_location(main)] if main else [],
        "relatedLocations": [{**_location(place, says), "id": k} for k, (_, says, place) in enumerate(steps)],
        "partialFingerprints": {
            "cxlemu/v1": "|".join([mistake.kind.name, *(str(place.at) for _, _, place in mistake.steps())])
        },
        "properties": {"wrongInThisRun": mistake.finding.manifest, "run": mistake.run, "replay": mistake.replay},
    }
    if steps:
        flow = [{"location": _location(place, says)} for _, says, place in mistake.steps()]
        result["codeFlows"] = [{"threadFlows": [{"locations": flow}]}]
    if mistake.reason:
        result["suppressions"] = [{"kind": "external", "justification": mistake.reason}]
    return result


def _missing(mistake: ProgramMistake) -> Iterator[str]:
    if mistake.missing:
        yield f"Missing: {mistake.missing}."


def _location(place: SourcePlace, says: str = "") -> dict[str, Any]:
    offset = place.at
    artifact = {"uri": Path(offset.file).as_uri() if offset.file.startswith("/") else offset.file}
    physical: dict[str, Any] = {"artifactLocation": artifact}
    if offset.line:
        physical["region"] = {"startLine": offset.line}
    location: dict[str, Any] = {"physicalLocation": physical}
    if offset.function:
        location["logicalLocations"] = [{"name": offset.function, "kind": "function"}]
    if says:
        location["message"] = {"text": says}
    return location
