"""What moves do to caches, to what is under way, and to the pool: the part of the definition that `steps` builds on."""

from faults.machine.program import MachineProgram
from faults.machine.state import CRASHED, Cached, MachineState, Posted, put, put2

NOBODY: frozenset[int] = frozenset()


class MachineMemory:
    """The memory of a program's hosts: what moves do to it."""

    def __init__(self, program: MachineProgram) -> None:
        self.program = program
        self.lines = range(len(program.lines))
        self.words = [[w for w, word in enumerate(program.words) if word.line == line] for line in self.lines]
        self._slot = {word: slot for words in self.words for slot, word in enumerate(words)}

    def visible(self, s: MachineState, t: int, word: int) -> int:
        """Return what a load sees now: its rank's own non-temporal store, the cached line, or what it would fetch."""
        thread, line = self.program.threads[t], self.program.words[word].line
        for stored, value in reversed(s.nt[thread.rank][line]):
            if stored == word:
                return value
        return self._cached(self._fetch(s, thread.host, line), thread.host, line).values[self._slot[word]]

    def _fetch(self, s: MachineState, host: int, line: int) -> MachineState:
        """An absent line enters the cache, from this host's own newest write-back that is under way, else the pool."""
        if s.caches[host][line] is not None:
            return s
        posted = s.posted[host][line]
        values = posted[-1].values if posted else tuple(s.pool[word] for word in self.words[line])
        return s._replace(caches=put2(s.caches, host, line, Cached(values, False, NOBODY)))

    def _store(self, s: MachineState, t: int, word: int, value: int) -> MachineState:
        host, line = self.program.threads[t].host, self.program.words[word].line
        s = self._fetch(s, host, line)
        cached = self._cached(s, host, line)
        cached = cached._replace(values=put(cached.values, self._slot[word], value), dirty=True)
        return s._replace(caches=put2(s.caches, host, line, cached))

    def _store_nt(self, s: MachineState, t: int, word: int, value: int) -> MachineState:
        thread, line = self.program.threads[t], self.program.words[word].line
        cached = s.caches[thread.host][line]
        if cached is not None and cached.dirty:
            s = self._post(s, thread.host, line, frozenset({thread.rank}))
        return s._replace(nt=put2(s.nt, thread.rank, line, (*s.nt[thread.rank][line], (word, value))))

    def _land_nt(self, s: MachineState, rank: int, line: int) -> MachineState:
        (word, value), *rest = s.nt[rank][line]
        host = self._host(rank)
        cached = s.caches[host][line]
        if cached is not None and cached.dirty:
            s = self._arrive(s, line, cached.values)
        s = s._replace(nt=put2(s.nt, rank, line, tuple(rest)), pool=put(s.pool, word, value))
        return self._absent(s, host, line)

    def _flush(self, s: MachineState, t: int, line: int, *, keep: bool = False) -> MachineState:
        """Post the line if it is dirty. This rank's fence will wait for all that is under way, and that it is gone."""
        thread = self.program.threads[t]
        cached, rank = s.caches[thread.host][line], frozenset({thread.rank})
        if cached is not None and cached.dirty:
            s = self._post(s, thread.host, line, rank)
        posted = tuple(back._replace(ranks=back.ranks | rank) for back in s.posted[thread.host][line])
        s = s._replace(posted=put2(s.posted, thread.host, line, posted))
        if cached is not None and not keep:
            leaving = self._cached(s, thread.host, line)._replace(dropping=cached.dropping | rank)
            s = s._replace(caches=put2(s.caches, thread.host, line, leaving))
        return s

    def _post(self, s: MachineState, host: int, line: int, ranks: frozenset[int]) -> MachineState:
        """A dirty line's write-back is on its way; the line is clean."""
        cached = self._cached(s, host, line)
        posted = (*s.posted[host][line], Posted(cached.values, ranks))
        s = s._replace(posted=put2(s.posted, host, line, posted))
        return s._replace(caches=put2(s.caches, host, line, cached._replace(dirty=False)))

    def _fenced(self, s: MachineState, host: int, rank: int, line: int) -> bool:
        cached = s.caches[host][line]
        leaving = cached is not None and rank in cached.dropping
        return not leaving and not any(rank in back.ranks for back in s.posted[host][line])

    def _arrive(self, s: MachineState, line: int, values: tuple[int, ...]) -> MachineState:
        for word, value in zip(self.words[line], values, strict=True):
            s = s._replace(pool=put(s.pool, word, value))
        return s

    def _absent(self, s: MachineState, host: int, line: int) -> MachineState:
        return s._replace(caches=put2(s.caches, host, line, None))

    def _crash(self, s: MachineState, host: int) -> MachineState:
        """The cache and the non-temporal stores are gone; what is posted may arrive yet."""
        lines = len(self.program.lines)
        s = s._replace(caches=put(s.caches, host, (None,) * lines))
        for t, thread in enumerate(self.program.threads):
            if thread.host == host:
                s = s._replace(nodes=put(s.nodes, t, CRASHED), begun=put(s.begun, t, False))
                s = s._replace(nt=put(s.nt, thread.rank, ((),) * lines))
        return s

    def _cached(self, s: MachineState, host: int, line: int) -> Cached:
        cached = s.caches[host][line]
        assert cached is not None
        return cached

    def _host(self, rank: int) -> int:
        return next(thread.host for thread in self.program.threads if thread.rank == rank)
