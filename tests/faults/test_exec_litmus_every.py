"""``cxlemu exec --every`` of litmus tests in C reaches the outcomes that the model allows, and no others."""

import pytest

from faults.machine.program import Do
from tests.helpers.litmus_programs import NAMES, allowed, litmus_program, reached
from tests.helpers.pool_programs import on_x86

pytestmark = on_x86
# Instructions of x86-64 that say what the model says, where those of cxl.h promise more; or less: an sfence lets later
# loads hit a line that was flushed before.
FUNCTIONS = {
    "FLUSHREAD-fenced": {Do.FENCE: "fence_loads_too"},
    "MP-invotherline": {Do.INVALIDATE: "invalidate_alone"},
    "NT-invalidate": {Do.INVALIDATE: "invalidate_alone"},
    "OBSERVED": {Do.WAIT: "wait_alone"},
    "SB-nofence": {Do.INVALIDATE: "invalidate_alone"},
}
BY_EVICTION = """
ACK-payload-late CoRR-noinv CoWR FLUSHREAD FLUSHREAD-keep MP-earlyinv MP-noflush MP-noinv MP-sameline MP-storeafterflush
OWNSTALE READER-dirties RESIDUE RESIDUE-eviction S-noflush SAMELINE-flagfirst SEQLOCK-oneline SEQLOCK-stalesecond
SIGNAL-plainstore STALEALLOC
"""  # all others need none
THREADS = "all steps of threads of one host are dependent: the search takes many minutes"
ON_ONE_HOST = """
CRASH-any-time CRASH-neighbour FENCESCOPE ONEHOST-flush ONEHOST-invalidate ONEHOST-nt ONEHOST-pending ONEHOST-wait
"""
FAST = {"MP", "MP-storeafterflush", "CRASH-flushed", "SIGNAL-plainstore", "NT-order"}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.deep(rows=lambda name: name not in FAST)
def test_every_interleaving_has_exactly_the_outcomes_that_the_model_allows(name: str) -> None:
    if name in ON_ONE_HOST.split():
        pytest.skip(THREADS)
    program = litmus_program(name, FUNCTIONS.get(name, {}))
    outcomes, hangs = reached(program, evictions=int(name in BY_EVICTION.split()))
    model, model_hangs = allowed(program)
    assert hangs == model_hangs
    assert outcomes == model
