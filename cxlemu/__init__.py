"""cxlemu is a machine: a pool of CXL memory cards that several hosts map, with no coherence between them.

`launch` runs a function on every rank of a world, `Topology` describes the machine.
"""

import sys

from cxlemu.lazy import imported_when_asked_for
from cxlemu.version import __version__

TYPE_CHECKING = False  # type checkers take it for true; `typing` loads long, and until then Ctrl-C is a traceback
if TYPE_CHECKING:
    from cxlemu.topology import Topology
    from cxlemu.world import RankContext, launch

if sys.flags.optimize:
    from cxlemu.asserts import keep_asserts

    keep_asserts()

__all__ = ["RankContext", "Topology", "__version__", "launch"]

__getattr__ = imported_when_asked_for(__name__, world=["RankContext", "launch"], topology__model=["Topology"])
