"""What the emulated cache does, the abstract machine allows: litmus tests in random orders, under an adversary."""

from pathlib import Path
from random import Random

import numpy as np
import pytest

from cxlemu.memory import AdversaryRates, HostCache, MemorySpec
from cxlemu.memory.protocol import LINE_BYTES
from cxlemu.memory.shadow import ShadowMemory
from faults.explore.result import Budget
from faults.litmus.language import Litmus, read
from faults.litmus.run import LitmusResult, run
from faults.machine.program import Do, MachineProgram, Step, Straight, Word
from faults.protocols.memory import WordMemory
from faults.protocols.places import WordAddresses, over_cards
from tests.helpers.tiers import seeds

FILES = sorted((Path(__file__).parent / "litmus").glob("*.yaml"))
RUNS = 40
RATES = AdversaryRates(evict=0.3, prefetch=0.3, land=0.3)
ARRIVALS = 0.05  # how often what is posted arrives before a step
DOORBELLS = (Do.SIGNAL, Do.WAIT)


class Emulated:
    """One execution of a litmus test on ShadowMemory: a thread at a time, chosen by the seed."""

    def __init__(self, litmus: Litmus, seed: int, *, in_c: bool) -> None:
        program = litmus.program
        self.program, self.random = program, Random(seed)
        self.places = places(litmus)
        self.pool = np.zeros(LINE_BYTES * len(program.lines), np.uint8)
        for word, (_, offset) in zip(program.words, self.places.words, strict=True):
            self.pool[offset : offset + 8].view("<u8")[0] = word.initial
        self.caches = [HostCache.private([self.pool]) for _ in range(program.hosts)]
        spec = MemorySpec(seed=seed or None, rates=RATES)  # seed 0: nothing moves by itself
        self.memories = []
        for thread in program.threads:
            cache = self.caches[thread.host]
            memory = spec.open([self.pool], host_cache=cache, host=thread.host, rank=thread.rank)
            assert isinstance(memory, ShadowMemory)
            self.memories.append(WordMemory(memory.native if in_c else memory, self.places))
        self.nodes = [0] * len(program.threads)
        self.registers = [0] * len(program.registers)
        self.events: set[int] = set()
        self.crashed: set[int] = set()

    def run(self) -> tuple[int, ...] | None:
        """Registers and pool in the end; None where nobody can go on."""
        while running := [t for t in range(len(self.nodes)) if self.step(t) is not None]:
            self.random.shuffle(running)
            if self.random.random() < ARRIVALS:
                self.memories[running[0]].settle()
            if not any(self.does(t) for t in running):  # the first who can
                return None
        for thread, memory in zip(self.program.threads, self.memories, strict=True):
            if thread.host not in self.crashed:
                memory.memory.fence()  # what is posted arrives
        words = [int(self.pool[offset : offset + 8].view("<u8")[0]) for _, offset in self.places.words]
        return (*self.registers, *words)

    def step(self, t: int) -> Step | None:
        thread = self.program.threads[t]
        return None if thread.host in self.crashed else thread.step(self.nodes[t])

    def does(self, t: int) -> bool:
        step, host = self.step(t), self.program.threads[t].host
        assert step is not None
        match step.do:
            case Do.RECORD:
                self.events.add(step.place)
            case Do.AWAIT:
                if step.place not in self.events:
                    return False
            case Do.CRASH:
                self.caches[host].crash(np.random.default_rng(self.random.randrange(1 << 32)))
                self.crashed.add(host)
            case _:
                seen = self.memories[t].do(step)
                if step.do == Do.WAIT and seen < step.value:
                    return False
                if step.do == Do.LOAD:
                    self.registers[step.register] = seen
        self.nodes[t] += 1
        return True


def places(litmus: Litmus) -> WordAddresses:
    """All on one card."""
    lines = over_cards(len(litmus.program.lines), 1, 0)
    return WordAddresses.of(litmus.program.words, lines)


def ends(result: LitmusResult) -> set[tuple[int, ...]]:
    return {(*outcome.registers, *outcome.memory) for outcome in result.exploration.outcomes}


@pytest.mark.each_value_once
@pytest.mark.parametrize("in_c", [False, True], ids=["python", "c"])
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_the_abstract_machine_has_every_outcome_of_the_emulated_cache(file: Path, in_c: bool) -> None:
    litmus = read(file)
    result = run(litmus, Budget(), "native")
    possible = ends(result)
    for seed in seeds(RUNS * 2):
        seen = Emulated(litmus, seed, in_c=in_c).run()
        assert seen in possible if seen is not None else result.hangs, f"seed {seed}"


def random_program(random: Random) -> MachineProgram:
    """Two or three ranks on one host or two; two words share a line."""
    words = (Word("x", 0), Word("y", 0), Word("z", 1), Word("f", 2), Word("g", 3))
    hosts = random.choice([(0, 1), (0, 1), (0, 0, 1), (0, 1, 1)])
    registers: list[str] = []
    threads = []
    for rank, host in enumerate(hosts):
        steps = []
        for number in range(random.randint(2, 6 if len(hosts) == 2 else 4)):
            word = random.randrange(3)
            do = random.choice([*Do][: Do.WAIT])
            if do in DOORBELLS:
                step = Step(do, 3 + (rank + (do == Do.WAIT)) % 2, 1)
            elif do == Do.LOAD:
                step = Step(do, word, register=len(registers))
                registers.append(f"r{len(registers)}")
            else:
                of_lines = do in (Do.FLUSH, Do.FLUSH_KEEP, Do.INVALIDATE)
                step = Step(do, words[word].line if of_lines else word, 10 * rank + number + 1)
            steps.append(step)
        threads.append(Straight(host, rank, f"rank {rank}", tuple(steps)))
    return MachineProgram(tuple(threads), words, ("xy", "z", "f", "g"), tuple(registers))


@pytest.mark.deep(rows=lambda seed: seed >= 10)
@pytest.mark.parametrize("seed", range(40))
def test_so_it_is_with_random_programs(seed: int) -> None:
    litmus = Litmus("", "", "", random_program(Random(seed)), (), hangs=True)
    result = run(litmus, Budget(), "native")
    possible = ends(result)
    assert result.complete
    for order in range(RUNS):
        seen = Emulated(litmus, order, in_c=bool(order % 2)).run()
        assert seen in possible if seen is not None else result.hangs, f"order {order}"


def test_the_emulated_cache_reaches_most_outcomes() -> None:
    """Or the test above would show nothing."""
    seen = possible = 0
    for file in FILES[::4]:
        litmus = read(file)
        ends = {
            (*outcome.registers, *outcome.memory) for outcome in run(litmus, Budget(), "native").exploration.outcomes
        }
        seen += len(ends & {Emulated(litmus, seed, in_c=True).run() for seed in range(RUNS)})
        possible += len(ends)
    assert seen > possible / 2
