"""Histories of operations: what an order explains, held to a search through all orders, and what is said."""

import random
from collections.abc import Iterator, Sequence
from itertools import combinations, permutations
from xml.etree import ElementTree

import pytest

from faults.programs.histories import (
    ADD,
    DEQUEUE,
    ENQUEUE,
    GET,
    MAP,
    NONE,
    PUT,
    QUEUE,
    READ,
    REGISTER,
    REMOVE,
    SHOWN,
    WRITE,
    LoggedOperation,
    explained,
    judge,
    words_of,
)
from faults.programs.history_picture import history_svg

OF_KIND = {REGISTER: (READ, WRITE, ADD), QUEUE: (ENQUEUE, DEQUEUE), MAP: (GET, PUT, REMOVE)}


def generated(seed: int) -> list[LoggedOperation]:
    """A small history of one object; most results are those of some order, so that both verdicts occur."""
    draw = random.Random(seed)
    kind = draw.choice((REGISTER, QUEUE, MAP))
    count, threads = draw.randint(1, 6), draw.randint(1, 3)
    free, history = [0] * threads, []
    for _ in range(count):
        thread = draw.randrange(threads)
        begin = free[thread] + draw.randint(1, 4)
        end = free[thread] = begin + draw.randint(1, 6)
        operation, value = draw.choice(OF_KIND[kind]), draw.randint(1, 2)
        result = draw.choice((0, 1, 1, 2, NONE))
        history.append(LoggedOperation(operation, 0, value, result, begin * 8 + thread, end * 8 + thread, thread))
    last = {its.host: its for its in history}  # of each host only its last operation can lack an end
    return [its._replace(end=0) if its is last[its.host] and draw.random() < 0.3 else its for its in history]


def simulated(order: Sequence[LoggedOperation]) -> bool:
    """Say whether this order gives each operation with an end its result: the objects as they are in Python."""
    register, queue, value = 0, list[int](), NONE
    for its in order:
        got: int | None = None
        void = its.end and its.result == NONE
        if its.operation == READ:
            got = register
        elif its.operation == WRITE:
            register = register if void else its.value
        elif its.operation == ADD:
            got, register = register, register + its.value
        elif its.operation == ENQUEUE:
            queue += [] if void else [its.value]
        elif its.operation == DEQUEUE:
            got = queue.pop(0) if queue else NONE
        elif its.operation == GET:
            got = value
        elif its.operation == PUT:
            value = value if void else its.value
        elif its.operation == REMOVE:
            got, value = value, NONE
        if its.end and got is not None and got != its.result:
            return False
    return True


def orders(history: Sequence[LoggedOperation]) -> Iterator[Sequence[LoggedOperation]]:
    """Yield each order that keeps those apart of which one ended before the other began, with any that lack an end."""
    ended, pending = [its for its in history if its.end], [its for its in history if not its.end]
    for count in range(len(pending) + 1):
        for some in combinations(pending, count):
            for order in permutations([*ended, *some]):
                if not any(b.end and b.end < a.begin for k, a in enumerate(order) for b in order[k + 1 :]):
                    yield order


def test_the_verdicts_are_those_of_all_orders() -> None:
    found = {}
    for seed in range(1500):
        history = generated(seed)
        found[seed] = any(map(simulated, orders(history)))
        assert explained(history) == found[seed], history
    assert 300 < sum(found.values()) < 1200  # both occur


def call(
    operation: int, result: int, begin: int, end: int, *, value: int = 0, key: int = 0, host: int = 0
) -> LoggedOperation:
    return LoggedOperation(operation, key, value, result, begin, end, host)


TWICE = [
    call(ENQUEUE, 5, 1, 2, value=5),
    call(DEQUEUE, 5, 3, 6, host=0),
    call(DEQUEUE, 5, 4, 7, host=1),
    call(DEQUEUE, 9, 8, 9, host=1),
]


def test_a_history_is_cut_behind_the_first_result_that_no_order_explains() -> None:
    verdict = judge(TWICE, QUEUE)
    assert words_of(verdict.wrong) == [
        "host 0  steps 1 to 2: enqueue(0, 5)",
        "host 0  steps 3 to 6: dequeue(0) = 5",
        "host 1  steps 4 to 7: dequeue(0) = 5",
    ]


def test_each_key_is_judged_alone_and_only_kinds_that_are_asked_for() -> None:
    history = [call(PUT, 1, 1, 2, value=1, key=1), call(GET, NONE, 3, 4, key=2), call(GET, NONE, 5, 6, key=1)]
    assert [its.key for its in judge(history, MAP).wrong] == [1, 1]
    assert judge(history, QUEUE) == judge(history[:2], MAP) == ([], [])


@pytest.mark.parametrize(
    ("result", "right"), [(0, True), (1, True), (2, False)], ids=["never", "at once", "another value"]
)
def test_what_has_no_end_may_have_taken_effect(result: int, right: bool) -> None:
    history = [call(WRITE, 0, 1, 0, value=1), call(READ, result, 3, 4, host=1)]
    assert explained(history) is right
    assert words_of(history)[0] == "host 0  step 1 on: write(0, 1), without an end"


def test_what_an_order_explains_stays_explained_when_it_is_long() -> None:
    history = [call(DEQUEUE, NONE, 2 * k, 2 * k + 1) for k in range(1, 5000)]
    assert explained(history) is True
    shown = words_of(history)
    assert shown[0] == "4975 operations before" and len(shown) == SHOWN + 1


def test_a_search_without_an_end_is_unknown() -> None:
    together = [call(WRITE, 1, k, 100 + k, value=k, host=k) for k in range(1, 14)]
    verdict = judge([*together, call(READ, 99, 200, 201)], REGISTER, most=50)
    assert not verdict.wrong
    assert verdict.undecided == [
        "cxl_linearizable: whether an order explains the 14 operations of register 0 is not known: the search was "
        "given up at 50 states"
    ]


# --- the picture -----------------------------------------------------------------------------------------------------


def drawn(history: Sequence[LoggedOperation]) -> tuple[list[tuple[float, float, str]], list[str], dict[str, float]]:
    """Return the bars of a picture, each with its style; its words; where each step is."""
    svg = ElementTree.fromstring(history_svg(history))
    tag = "{http://www.w3.org/2000/svg}"
    bars = [
        (float(its.attrib["x"]), float(its.attrib["width"]), its.attrib["class"] + its.get("stroke-dasharray", ""))
        for its in svg.iter(f"{tag}rect")
        if "class" in its.attrib
    ]
    words = list(svg.iter(f"{tag}text"))
    steps = {its.text or "": float(its.attrib["x"]) for its in words if its.get("text-anchor") == "middle"}
    return bars, [its.text or "" for its in words], steps


def test_the_picture_has_a_row_for_each_host_and_the_result_that_no_order_gives_in_red() -> None:
    bars, words, steps = drawn(judge(TWICE, QUEUE).wrong)
    assert words[0] == "no order explains dequeue(0) = 5 of host 1"
    assert [its for its in words if its.startswith("host")] == ["host 0", "host 1"]
    assert list(steps) == ["1", "2", "3", "4", "6", "7"] and sorted(steps.values()) == list(steps.values())
    spans = {"box": [("1", "2"), ("3", "6")], "wrong": [("4", "7")]}
    for style, its in spans.items():
        assert [(x, x + width) for x, width, kind in bars if kind == style] == [(steps[a], steps[b]) for a, b in its]


def test_operations_of_one_host_at_once_have_rows_and_one_without_an_end_is_dashed() -> None:
    history = [call(GET, 1, 1, 9), call(PUT, 0, 2, 0, value=1), call(GET, NONE, 3, 4), call(GET, 5, 10, 11)]
    bars, words, steps = drawn(history)
    assert [its for its in words if its.startswith("host")] == ["host 0"] * 3
    ((x, width, _),) = [its for its in bars if its[2] == "box5 4"]
    assert x == steps["2"] and x + width > steps["11"]


def test_a_long_history_is_drawn_from_where_it_matters() -> None:
    history = [call(WRITE, 0, 2 * k, 2 * k + 1, value=123456789) for k in range(1, 40)]
    bars, words, _ = drawn(history)
    assert len(bars) == SHOWN and f"{39 - SHOWN} operations before these" in words[1]
    assert all(width > 7 * len("write(0, 123456789)") for _, width, _ in bars)
