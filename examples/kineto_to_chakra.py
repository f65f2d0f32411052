"""Torch's profiles of ranks on the pool as Chakra traces: python examples/kineto_to_chakra.py OUT RANK0 RANK1 ...

cxlemu simulate trace OUT -c titan2-6xcz120, with --groups OUT.groups.json where there are groups beside the world.
"""

import json
import sys
from pathlib import Path

from cxlemu.chakra import kineto
from cxlemu.chakra.files import write

if __name__ == "__main__":
    out, *profiles = map(Path, sys.argv[1:]) if len(sys.argv) > 2 else sys.exit(__doc__)
    ranks = [kineto.read(path, rank) for rank, path in enumerate(profiles)]
    for path in write(out, [rank.nodes for rank in ranks]):
        print(path)
    groups: dict[str, list[int]] = {}
    for name, members in (group for rank in ranks for group in rank.groups.items()):
        if groups.setdefault(name, members) != members:
            sys.exit(f"two groups have the name {name}: {groups[name]} and {members}")
    if groups:
        path = out.with_name(f"{out.name}.groups.json")
        path.write_text(json.dumps(groups))
        print(path)
