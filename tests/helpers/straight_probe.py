"""Run where a host keeps an image of every card: what each step of `Straight` executes, and what its store leaves.

python -m tests.helpers.straight_probe CARD    # exit code 0: each step executes exactly its instructions
"""

import sys
from collections import Counter
from pathlib import Path

import numpy as np

from cxlemu.memory.protocol import LINE_BYTES
from cxlemu.pool.device import map_device
from faults.litmus._straight import Straight
from faults.machine.program import Do
from tests.helpers.dax_probe import Ear, Lines

LINE, WORD = 8192, 3  # where the trial's line lies, and the word in it that steps name

AT_LINE = (0, LINE // LINE_BYTES)
# What a step executes besides loads and stores: kind, card and line, as `Ear` hears it.
EXPECTED: dict[Do, Lines] = {
    Do.STORE: Counter(),
    Do.STORE_NT: Counter({("n", *AT_LINE): 1}),
    Do.FLUSH: Counter({("f", *AT_LINE): 1}),
    Do.FLUSH_KEEP: Counter({("f", *AT_LINE): 1}),
    Do.FENCE: Counter({("|", -1, 0): 1}),
    Do.INVALIDATE: Counter({("i", *AT_LINE): 1}),
    Do.LOAD: Counter(),
    Do.SIGNAL: Counter({("f", *AT_LINE): 1}),
    Do.WAIT: Counter({("i", *AT_LINE): 1}),
}


def main(card: str) -> None:
    pages = map_device(card).pages
    straight, ear = Straight([pages], 0, 0, 1, lambda: None, 10), Ear()
    for do, expected in EXPECTED.items():
        found, left = executed(straight, ear, do)
        found.subtract(executed(straight, ear, Do.LOAD)[0])
        its = {event: count for event, count in found.items() if count}
        assert its == dict(expected), f"{do.name} executes {its} instead of {dict(expected)}"
        assert left == (7 if do in (Do.STORE, Do.STORE_NT, Do.SIGNAL) else 5), f"{do.name} leaves {left}"


def executed(straight: Straight, ear: Ear, do: Do) -> tuple[Lines, int]:
    """What is executed in a trial of this step alone, all around it included, and the word in the end: 5 before."""
    steps = np.array([[do, 0, 5 if do == Do.WAIT else 7, 0]], np.int64)
    seen, hung, left = np.zeros((1, 1), np.int64), np.zeros(1, np.uint8), np.zeros(1, np.int64)
    where = (np.array([LINE, 0], np.int64), np.array([[0, WORD]], np.int64))
    meets, pauses = np.ones(1, np.uint8), np.zeros((1, 1), np.uint16)
    ear.heard()
    assert straight.run(steps, *where, pauses, meets, seen, hung, 1, 1, False, np.array([5])) == 1
    heard = ear.heard()
    assert not hung.any() and seen[0, 0] == (5 if do == Do.LOAD else 0)
    straight.memory(*where, meets, 1, left)
    return heard, int(left[0])


if __name__ == "__main__":
    Path(sys.argv[1]).write_bytes(bytes(1 << 20))
    main(sys.argv[1])
