"""What the fast tier looks at, by one pair of ranks."""

from typing import Any

import torch
import torch.distributed as dist

from tests.collectives.torch.lists import lists, timed
from tests.collectives.torch.matrix import beside_gloo
from tests.collectives.torch.mistakes import mistakes
from tests.collectives.torch.training import ddp_beside_gloo


def together(rank: int, ranks: int, store: Any) -> dict[str, Any]:
    found = {}
    for program in (beside_gloo, ddp_beside_gloo, lists, mistakes, timed):
        found[program.__name__] = program(rank, ranks, dist.PrefixStore(program.__name__, store))
    assert torch.get_num_threads() == 1
    return found
