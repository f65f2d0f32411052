"""A litmus test in YAML, as a program of the abstract machine and what is expected of its outcomes.

    name: MP-noflush
    doc: The payload is never pushed.
    lines: {L0: [x, y]}              # words that share a line; every other word has a line of its own
    initial: {x: 0}                  # 0 where absent
    hosts:
      A: [store x 1, fence, signal f 1]
      B: {left: [wait f 1, invalidate x, load x r1], right: [fence]}     # two ranks on one host
    allowed: [B.r1 == 0]             # some execution ends so
    forbidden: [B.r1 == 2]           # none does
    hangs: allowed                   # some execution never ends; forbidden where absent

Memory in a condition is the pool's when all ranks have ended and everything posted has arrived or was lost; a dirty
line stays in its cache or was evicted. ``record e`` and ``await e`` are order from outside the pool.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cxlemu.errors import ConfigError
from cxlemu.topology.document import Document, Key, shown
from faults.explore.result import FinalState
from faults.litmus.condition import Condition
from faults.machine.program import Do, MachineProgram, Step, Straight, Word

RANKS_MAX, STEPS_MAX, WORDS_MAX, VALUE_MAX = 8, 40, 16, 1_000_000
NAME = re.compile(r"(?!(and|or|not|in|is|if|else|lambda|await|for|None|True|False)$)[A-Za-z_][A-Za-z0-9_]{0,30}")

KINDS: dict[type, str] = {str: "text", dict: "a mapping", list: "a list"}
# key -> (its type, whether it must be there, what it says)
KEYS: dict[str, tuple[type, bool, str]] = {
    "name": (str, True, "the test's name"),
    "doc": (str, False, "what it is about, for people"),
    "lines": (dict, False, "line -> list of the words that share it; every other word has a line of its own"),
    "initial": (dict, False, "word -> its value before the first step; 0 where absent"),
    "hosts": (dict, True, "host -> list of its steps; or, for several ranks on a host, rank -> list of steps"),
    "allowed": (list, False, "conditions, such as `B.r == 1 and x == 0`: some execution ends so"),
    "forbidden": (list, False, "conditions: no execution ends so"),
    "hangs": (str, False, "`allowed`: some execution never ends; `forbidden`, as where it is absent: none does"),
}

# verb -> (what it does, what stands after it, in words)
VERBS = {
    "store": (Do.STORE, ("word", "value"), "write a word into the cache of the host"),
    "store_nt": (
        Do.STORE_NT,
        ("word", "value"),
        "write a word past the cache; it is in the pool after this rank's next fence at latest",
    ),
    "flush": (
        Do.FLUSH,
        ("word",),
        "write back a word's line; it is in the pool, and out of the cache, after this rank's next fence at latest",
    ),
    "flush_keep": (Do.FLUSH_KEEP, ("word",), "the same, but the line may stay in the cache"),
    "fence": (Do.FENCE, (), "wait until all that this rank posted is in the pool"),
    "invalidate": (Do.INVALIDATE, ("word",), "drop a word's line from the cache, so that the next load fetches it"),
    "load": (Do.LOAD, ("word", "register"), "read a word into a register"),
    "signal": (Do.SIGNAL, ("word", "value"), "write a word and flush its line at once, as a doorbell is rung"),
    "wait": (Do.WAIT, ("word", "value"), "invalidate and read a word until it is VALUE or more"),
    "record": (Do.RECORD, ("event",), "an event that other ranks can await, by other means than the pool"),
    "await": (Do.AWAIT, ("event",), "wait until the event was recorded"),
    "crash": (Do.CRASH, (), "the host ends here, with its ranks and cache; in a rank without other steps: at any time"),
}


@dataclass(frozen=True)
class Expectation:
    allowed: bool  # True if some execution ends so, False if none does
    condition: Condition


@dataclass(frozen=True)
class Litmus:
    file: str
    name: str
    doc: str  # its description; empty if there is none
    program: MachineProgram  # the hosts' steps; hosts and ranks are numbered in the order of the file
    expectations: tuple[Expectation, ...]  # all ``allowed``, then all ``forbidden``
    hangs: bool  # what is expected: True if some execution never ends, False if none does

    @property
    def names(self) -> list[str]:
        return [*self.program.registers, *(word.name for word in self.program.words)]

    @property
    def unmet(self) -> list[tuple[str, int]]:
        """The words that a rank waits for, each with a value that no step stores to it: names, perhaps, mistyped."""
        steps = [step for thread in self.program.threads if isinstance(thread, Straight) for step in thread.steps]
        most = {place: word.initial for place, word in enumerate(self.program.words)}
        for step in steps:
            if step.do in {Do.STORE, Do.STORE_NT, Do.SIGNAL}:
                most[step.place] = max(most[step.place], step.value)
        waits = ((step.place, step.value) for step in steps if step.do == Do.WAIT and step.value > most[step.place])
        return [(self.program.words[place].name, value) for place, value in dict.fromkeys(waits)]

    def values(self, outcome: FinalState) -> dict[str, int]:
        return dict(zip(self.names, (*outcome.registers, *outcome.memory), strict=True))

    def condition(self, text: str) -> Condition:
        return Condition.parse(text, self.names)


def read(path: Path) -> Litmus:
    return _Reader(Document.read(path, "litmus test")).litmus()


def parse(raw: bytes, name: str) -> Litmus:
    return _Reader(Document(raw, name, "litmus test")).litmus()


class _Reader:
    def __init__(self, document: Document) -> None:
        self.document = document
        self.lines: list[str] = []
        self.words: dict[str, Word] = {}
        self.registers: dict[str, str] = {}  # name -> the rank that loads it
        self.events: list[str] = []

    def litmus(self) -> Litmus:
        data = self.document.data
        for key, value in data.items():
            if key not in KEYS:
                raise self.error((key,), f"is not a known key; write one of {', '.join(KEYS)}")
            if not isinstance(value, KEYS[key][0]):
                raise self.error((key,), f"is {shown(value)} but should be {KINDS[KEYS[key][0]]}")
        for key, (_, required, _) in KEYS.items():
            if required and not data.get(key):
                raise self.error((key,), "is missing or empty")
        if data.get("hangs", "forbidden") not in {"allowed", "forbidden"}:
            raise self.error(("hangs",), f"is {shown(data['hangs'])} but should be allowed or forbidden")
        self._shared_lines(data.get("lines", {}))
        threads = tuple(self._threads(data["hosts"]))
        initial = self._initial(data.get("initial", {}))
        words = tuple(word._replace(initial=initial.get(word.name, 0)) for word in self.words.values())
        program = MachineProgram(threads, words, tuple(self.lines), tuple(self.registers))
        litmus = Litmus(
            self.document.file, data["name"], data.get("doc", ""), program, (), data.get("hangs") == "allowed"
        )
        expectations = tuple(self._expectations(litmus))
        if not expectations and "hangs" not in data:
            raise self.error((), "no outcome is expected: write allowed, forbidden or hangs")
        return Litmus(litmus.file, litmus.name, litmus.doc, program, expectations, litmus.hangs)

    def _shared_lines(self, lines: Mapping[str, Any]) -> None:
        for line, words in lines.items():
            self._name(("lines", line), line)
            if not isinstance(words, list) or not words:
                raise self.error(("lines", line), f"is {shown(words)} but should be a list of words such as [x, y]")
            self.lines.append(line)
            for index, word in enumerate(words):
                self._name(("lines", line, index), word)
                if word in self.words:
                    raise self.error(("lines", line, index), f"{word} appears in two places")
                self.words[word] = Word(word, len(self.lines) - 1)

    def _initial(self, initial: Mapping[str, Any]) -> dict[str, int]:
        for word, value in initial.items():
            if word not in self.words:
                raise self.error(("initial", word), "is a word that no step uses")
            if type(value) is not int or not 0 <= value <= VALUE_MAX:
                raise self.error(("initial", word), f"is {shown(value)} but should be a number from 0 to {VALUE_MAX}")
        return dict(initial)

    def _threads(self, hosts: Mapping[str, Any]) -> Iterator[Straight]:
        rank = 0
        for host, (name, given) in enumerate(hosts.items()):
            self._name(("hosts", name), name)
            ranks = given if isinstance(given, dict) and given else {"": given}
            for which, texts in ranks.items():
                key: Key = ("hosts", name, which) if which else ("hosts", name)
                if not isinstance(texts, list) or len(texts) > STEPS_MAX:
                    raise self.error(key, f"should be a list of at most {STEPS_MAX} steps such as [store x 1, flush x]")
                if rank == RANKS_MAX:
                    raise self.error(key, f"is one rank too many: at most {RANKS_MAX} are searched")
                thread = f"{name}.{which}" if which else name
                steps = tuple(self._step((*key, index), text, name, thread) for index, text in enumerate(texts))
                yield Straight(host, rank, thread, steps)
                rank += 1

    def _step(self, key: Key, text: object, host: str, thread: str) -> Step:
        verb, *rest = text.split() if isinstance(text, str) and text.strip() else [""]
        if verb not in VERBS:
            raise self.error(key, f"{shown(text)} is not a step; its first word is one of {', '.join(VERBS)}")
        do, takes, _ = VERBS[verb]
        if len(rest) != len(takes):
            raise self.error(key, f"{shown(text)} should be {' '.join((verb, *map(str.upper, takes)))}")
        given = dict(zip(takes, rest, strict=True))
        step = Step(do)
        if "word" in given:
            word = self._word(key, given["word"])
            line_wise = do in {Do.FLUSH, Do.FLUSH_KEEP, Do.INVALIDATE}
            step = step._replace(place=self.words[word].line if line_wise else list(self.words).index(word))
        if "value" in given:
            step = step._replace(value=self._value(key, given["value"]))
        if "register" in given:
            register = f"{host}.{self._name(key, given['register'])}"
            if self.registers.setdefault(register, thread) != thread:
                raise self.error(key, f"{self.registers[register]} also loads {register}; give it another name")
            step = step._replace(register=list(self.registers).index(register))
        if "event" in given:
            event = self._name(key, given["event"])
            if event not in self.events:
                self.events.append(event)
            step = step._replace(place=self.events.index(event))
        return step

    def _expectations(self, litmus: Litmus) -> Iterator[Expectation]:
        for kind in ("allowed", "forbidden"):
            for index, text in enumerate(self.document.data.get(kind, [])):
                try:
                    condition = litmus.condition(text if isinstance(text, str) else "")
                except ValueError as error:
                    raise self.error((kind, index), f"{shown(text)} {error}") from None
                yield Expectation(kind == "allowed", condition)

    def _word(self, key: Key, name: str) -> str:
        """A word that no line names gets one to itself."""
        self._name(key, name)
        if name not in self.words:
            if len(self.words) == WORDS_MAX:
                raise self.error(key, f"{name} is one word too many: at most {WORDS_MAX} are searched")
            self.lines.append(name)
            self.words[name] = Word(name, len(self.lines) - 1)
        return name

    def _value(self, key: Key, text: str) -> int:
        if not re.fullmatch(r"[0-9]{1,7}", text) or int(text) > VALUE_MAX:
            raise self.error(key, f"{shown(text)} should be a number from 0 to {VALUE_MAX}")
        return int(text)

    def _name(self, key: Key, name: object) -> str:
        if not isinstance(name, str) or not NAME.fullmatch(name):
            raise self.error(key, f"{shown(name)} should be a name such as x or flag_1")
        return name

    def error(self, key: Key, text: str) -> ConfigError:
        return self.document.error(key, text)
