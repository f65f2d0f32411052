"""Plans from which something is taken."""

from dataclasses import replace

import numpy as np

from cxlemu.plan import Plan


def without(plan: Plan, rank: int, stream: int, at: int) -> Plan:
    part = plan.part(rank)
    streams = list(part.streams)
    streams[stream] = replace(streams[stream], records=np.delete(streams[stream].records, at))
    return plan.with_part(replace(part, streams=tuple(streams)))
