"""Files for the caches of emulated hosts, which the processes of one launch share: memory without a name anywhere."""

import os
from collections.abc import Sequence
from pathlib import Path

from cxlemu.errors import PoolError
from cxlemu.memory.cache import HostCache, damage_in, host_segment_bytes
from cxlemu.memory.protocol import Bytes
from cxlemu.pool import segments


class CacheFiles:
    """A file for each host's cache, which lives as long as this object and is gone with this process."""

    def __init__(self, hosts: int, cards: int, card_bytes: int) -> None:
        self._files = [os.memfd_create(f"cxlemu-host{host}") for host in range(hosts)]
        for fd in self._files:
            os.ftruncate(fd, host_segment_bytes(cards, card_bytes))
        self.paths = tuple(f"/proc/{os.getpid()}/fd/{fd}" for fd in self._files)

    def close(self) -> None:
        """Let go of the files; twice is fine."""
        while self._files:
            os.close(self._files.pop())


def open_cache(cards: Sequence[Bytes], paths: Sequence[str], host: int) -> HostCache:
    nbytes = host_segment_bytes(len(cards), cards[0].nbytes)
    try:
        first, file = (_shared(Path(paths[number]), nbytes) for number in (0, host))
    except OSError as error:
        raise PoolError(f"the cache of host {host} is gone: its world was stopped ({error.strerror})") from None
    return HostCache.shared(cards, file, Path(paths[host]), host=host, damage=damage_in(first))


def _shared(path: Path, nbytes: int) -> Bytes:
    with path.open("r+b") as file:
        return segments.map_shared(file.fileno(), nbytes)
