"""What flags of ``cxlemu simulate serving`` ask for: requests, and what serves them."""

from dataclasses import replace

from cxlemu.errors import ArgumentError
from cxlemu.topology import Accelerator, Topology
from studies.choices import REQUESTS, REQUESTS_PER_S
from studies.cli.simulate_serving import ServingFlags
from studies.serving.events import COLD, CRASH, LOSE_CARD, Incident
from studies.serving.iterations import Iterations
from studies.serving.places import places_of
from studies.serving.requests import ServingRequest, generate, load
from studies.serving.simulation import ServingSetup, with_hosts
from studies.training.language_model import LanguageModel
from studies.training.symmetric import fabric_of

DEFAULT_ACCELERATOR = "h100-sxm"


def requests_of(asked: ServingFlags, hosts: int) -> list[ServingRequest]:
    if asked.trace is None:
        return generate(asked.requests or REQUESTS, asked.rate or REQUESTS_PER_S * hosts, asked.seed, asked.workload)
    if asked.rate is not None:
        raise ArgumentError("--rate only applies to generated requests: a trace has its own times")
    requests = load(asked.trace, asked.requests)
    if not requests:
        raise ArgumentError(f"{asked.trace} has no requests")
    return requests


def setups_of(asked: ServingFlags, topology: Topology) -> list[ServingSetup]:
    computer = Accelerator.load(asked.accelerator or topology.accelerator or DEFAULT_ACCELERATOR)
    if asked.inside is not None and asked.tensor * asked.expert == 1:
        raise ArgumentError("--inside does nothing here, because an instance is one accelerator: give --tp or --ep")
    inside = None
    if asked.inside is not None:
        inside = fabric_of(Topology.load(asked.inside), max(asked.tensor, asked.expert))
    iterations = Iterations(LanguageModel.load(asked.model), computer, asked.tensor, inside, asked.expert)
    places = asked.places or tuple(places_of(topology))
    if places == ("accelerator",) and (asked.warm or asked.capacity_bytes is not None):
        what = "--warm" if asked.warm else "--capacity"
        raise ArgumentError(f"{what} does nothing without a store: give --place host, pool or rdma")
    first, last = asked.sweep or (topology.host_count, topology.host_count)
    machines = {hosts: with_hosts(topology, hosts) if asked.sweep else topology for hosts in range(first, last + 1)}
    given = ((CRASH, asked.crashes), (LOSE_CARD, asked.lost_cards), (COLD, asked.cold_starts))
    incidents = [Incident.parse(kind, text, machines[first]) for kind, texts in given for text in texts]
    if len(set(incidents)) < len(incidents):
        twice = next(incident for index, incident in enumerate(incidents) if incident in incidents[:index])
        raise ArgumentError(f"{twice} is given twice: give it once")
    setup = ServingSetup(
        topology=machines[first],
        iterations=iterations,
        place=places[0],
        prefill=asked.prefill,
        chunk=asked.chunk,
        most=asked.batch,
        route=asked.route,
        warm=asked.warm,
        incidents=sorted(incidents, key=lambda incident: incident.at_ns),
    )
    return [
        replace(
            setup,
            topology=machine,
            place=place,
            capacity_bytes=None if place == "accelerator" else asked.capacity_bytes,
        )
        for place in places
        for machine in machines.values()
    ]
