"""How many examples a property test tries, and how long tests wait: see tests/conftest.py."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hypothesis import settings

# Under a sanitizer all is slower, and a share of the examples is enough: see scripts/sanitize.
PERCENT = int(os.environ.get("CXLEMU_EXAMPLES_PERCENT", "100"))
PATIENT_S = 300.0  # for what takes a second or two, so that only a hang takes longer, however loaded the machine is


def examples(count: int, **others: Any) -> settings:
    """``count`` in the deep tier, and in the fast one as much less as of tests that do not say how many."""
    from hypothesis import settings  # ranks import this module, and should do so fast

    return settings(max_examples=max(count * settings.default.max_examples // 100, 1), **others)


def seeds(count: int) -> range:
    """``count`` in the deep tier, and in the fast one as much less as of examples."""
    return range(examples(count).max_examples)
