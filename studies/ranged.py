"""Reproductions with other figures of their configs: within their ranges, or assumed ones a quarter lower and higher.

A figure of hosts or cards is the same on the test bed and on more hosts, and on all clusters of FLUX that have it. What
is fitted stays. Each reproduction says on which sizes, and with how many runs of all figures at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from cxlemu.topology import Accelerator, Topology
from cxlemu.topology.document import Key
from cxlemu.topology.intervals import SAMPLES, Uncertain, changed, uncertain, value_at, variations
from studies.cores import on_all_cores
from studies.published import cccl, flux, scalepool, serving
from studies.published.flux_clusters import Clusters
from studies.published.variation import AS_ASSUMED, FACTORS, assumed, predictions, times
from studies.validation.processor import Processor
from studies.validation.study import HOPPER, PARTS, PROCESSOR, PRODUCTS, SWITCHED, Study

Run = Mapping[Key, float]  # a value for each figure that is changed
STARTING = ("matmul_ns",)  # of a processor: of products alone
UNUSED = ("hosts", "memory")  # figures of memory in which no plan of a reproduction keeps anything


class Ranged(NamedTuple):
    """Figures of a table that depend on the same figures of configs."""

    figures: list[Uncertain]  # with a range
    ours: Callable[[Run], dict[str, float]]  # the table's figures, by their names, with others of those
    samples: int = SAMPLES
    assumed: Mapping[str, tuple[Key, float]] = {}  # by name, the figures of `otherwise` and what they are assumed to be

    def answers(self) -> Iterator[dict[str, float]]:
        return map(self.ours, variations(self.figures, self.samples))

    def otherwise(self) -> Iterator[tuple[str, dict[str, tuple[float, float]]]]:
        """Compute the table's figures as assumed, then with each assumed figure alone a quarter lower and higher."""
        usual = self.ours({})
        yield AS_ASSUMED, {figure: (its, its) for figure, its in usual.items()}
        for name, (key, value) in self.assumed.items():
            less, more = (self.ours({key: times(key, value, factor)}) for factor in FACTORS)
            yield name, {figure: (less[figure], more[figure]) for figure in usual}

    @property
    def runs(self) -> int:
        return 1 + 2 * len(self.figures) + self.samples


@contextmanager
def computed(parts: Sequence[Ranged]) -> Iterator[Iterator[dict[str, float]]]:
    """Provide the answers of all parts, in order, which workers compute, one on each core."""
    runs = [(part, run) for part in range(len(parts)) for run in variations(parts[part].figures, parts[part].samples)]

    def answer(case: tuple[int, Run]) -> dict[str, float]:
        return parts[case[0]].ours(case[1])

    with on_all_cores(answer) as each:
        yield each(runs)


def of_validation() -> list[Ranged]:
    """Vary each config of the measurements by itself."""

    def of(config: str) -> Ranged:
        topology = Topology.load(config)

        def ours(run: Run) -> dict[str, float]:
            return {row.measured.figure: row.ours for row in Study({config: changed(topology, run)}).rows_of(config)}

        return Ranged(_used(topology), ours)

    switched = Topology.load(SWITCHED), Processor.load(PROCESSOR)

    def ports(run: Run) -> dict[str, float]:
        topology, processor = changed(switched, run)
        rows = Study({SWITCHED: topology}, processor=processor).rows_of(SWITCHED)
        return {row.measured.figure: row.ours for row in rows}

    machine = Topology.load(HOPPER), Accelerator.load("h100-sxm"), Processor.load(PROCESSOR)

    def products(run: Run) -> dict[str, float]:
        topology, accelerator, processor = changed(machine, run)
        study = Study({HOPPER: topology}, accelerator if run else None, processor)
        return {row.measured.figure: row.ours for row in study.rows_of(PRODUCTS)}

    others = (of(config) for config in PARTS if config not in (SWITCHED, PRODUCTS))
    of_ports = [figure for figure in _used(switched) if figure.key != (1, *STARTING)]
    of_products = [figure for figure in _used(machine) if figure.key[0] != 2 or figure.key == (2, *STARTING)]
    return [Ranged(of_ports, ports), *others, Ranged(of_products, products)]


def of_cccl(work: cccl.Reproduction, sizes: Sequence[int] = cccl.FEW) -> list[Ranged]:
    """Vary the test bed, with the hosts that it grows to, and the baseline; on three sizes, which take seconds."""
    machines, grown = (work.ours.topology, work.nccl.topology), work.grown.topology

    def ours(run: Run) -> dict[str, float]:
        bed, baseline = changed(machines, run)
        larger = changed(grown, {key[1:]: value for key, value in run.items() if key[0] == 0})
        return predictions(work.on(bed, larger, baseline, sizes).each_row())

    guesses = {
        f"{its.name}: {name}": ((at, *key), value_at(its, key))
        for at, its in enumerate(machines)
        for key, name in assumed(its)
    }
    return [Ranged(_used(machines), ours, 40, guesses)]


def of_flux(work: flux.Reproduction) -> list[Ranged]:
    """Vary all clusters at once, and their accelerators; fused calls keep the tiles that are fastest as assumed."""
    names = dict.fromkeys((*flux.MEASURED, *(cluster for cluster, _ in flux.REPORTED)))
    clusters = {name: Topology.load(name) for name in names}
    chips = {name: Accelerator.load(str(cluster.accelerator)) for name, cluster in clusters.items()}
    of_fabrics = {figure.key: figure for topology in clusters.values() for figure in _used(topology)}
    of_chips = {
        figure.key: figure._replace(name=f"accelerator: {figure.name}")
        for chip in chips.values()
        for figure in uncertain(chip)
    }

    def ours(run: Run) -> dict[str, float]:
        def described(cluster: str) -> tuple[Topology, Accelerator]:
            parts = clusters[cluster], chips[cluster]
            return changed(parts[0], _scaled(parts[0], of_fabrics, run)), changed(
                parts[1], _scaled(parts[1], of_chips, run)
            )

        return predictions(flux.Reproduction(work.m, Clusters(work.clusters, described)).rows)

    both = of_fabrics | of_chips
    files: list[Topology | Accelerator] = [*clusters.values(), *chips.values()]
    keys = {key for its in files for key, _ in assumed(its)}
    guesses = {its.name: (key, its.value) for key, its in both.items() if key in keys}
    return [Ranged(list(both.values()), ours, 20, guesses)]


def of_scalepool(work: scalepool.Reproduction) -> list[Ranged]:
    """Vary both fabrics between clusters; what is inside clusters, and tier 2, stays."""
    machines = Topology.load(work.setup.baseline), Topology.load(work.setup.scalepool)

    def ours(run: Run) -> dict[str, float]:
        if not run:
            return predictions(work.rows())
        sides = {key[0] for key in run}
        baseline, fabric = changed(machines, run)
        varied = work.varied(baseline=baseline if 0 in sides else None, scalepool=fabric if 1 in sides else None)
        return predictions(varied.rows())

    return [Ranged(_used(machines), ours, 10)]


def of_serving() -> list[Ranged]:
    """Vary the machines of each part; the fabric inside an instance stays."""

    def of(rows_of: Callable[..., serving.Rows], machines: serving.Machines) -> Ranged:
        return Ranged(_used(machines), lambda run: predictions(row for _, row in rows_of(*changed(machines, run))), 20)

    return [of(*part) for part in serving.parts()]


def _used(described: Topology | tuple[Topology | Accelerator | Processor, ...]) -> list[Uncertain]:
    return [
        figure
        for figure in uncertain(described)
        if (figure.key[1:3] if isinstance(described, tuple) else figure.key[:2]) != UNUSED
    ]


def _scaled(described: Topology | Accelerator, figures: Mapping[Key, Uncertain], run: Run) -> dict[Key, float]:
    """Change a figure by as much of its own value as another machine's figure of that key changes."""
    there = {key: value_at(described, key) for key in run if key in figures}
    scaled = {key: times(key, factor, run[key] / figures[key].value) for key, factor in there.items() if factor}
    return scaled | {key: run[key] for key, factor in there.items() if factor == figures[key].value == 0}
