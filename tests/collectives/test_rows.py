"""Words for many peers at once give the same records as the words for one, peer after peer."""

from dataclasses import replace

import pytest

from collectives.algorithms import catalog
from collectives.algorithms.hierarchical import level
from collectives.builder import ALL, NAIVE, STAGED, VARIANTS, Builder, VariantSpec, folds
from collectives.builder.recipes import Recipe
from collectives.checking.symbolic import verify
from collectives.layouts import layout_for
from collectives.sweep.virtual.plans import plan_of
from cxlemu.plan import Call, InHeap, Plan
from cxlemu.topology import Topology


def one_by_one(b: Builder) -> None:
    """As `at_once`, with a word for each peer."""
    for chunks in b.rounds(b.nbytes, blocks=b.ranks, spread="ranges"):
        for chunk in chunks:
            for peer in b.peers:
                if size := min(chunk.nbytes, peer * 100):
                    b.publish(chunk._replace(nbytes=size), b.input(peer * b.nbytes + chunk.offset), block=peer)
        for chunk in chunks:
            for peer in b.peers:
                if size := min(chunk.nbytes, b.rank * 100):
                    at = peer * b.nbytes + chunk.offset
                    b.retrieve(b.output(at), chunk._replace(nbytes=size), peer, block=b.rank)


def at_once(b: Builder) -> None:
    peers = b.each_peer
    for chunks in b.rounds(b.nbytes, blocks=b.ranks, spread="ranges"):
        for chunk in chunks:
            sizes = (peers * 100).clip(max=chunk.nbytes)
            b.publish_each(chunk, peers * b.nbytes + chunk.offset, blocks=peers, nbytes=sizes)
        for chunk in chunks:
            sizes = (peers * 0 + b.rank * 100).clip(max=chunk.nbytes)
            b.retrieve_each(peers * b.nbytes + chunk.offset, chunk, peers, block=b.rank, nbytes=sizes)


def folds_all_but_the_first(b: Builder) -> None:
    for chunks in b.rounds(b.nbytes, spread="ranges"):
        for chunk in chunks:
            b.publish(chunk, b.input(chunk.offset))
            b.fold(b.output(chunk.offset), chunk, b.input(chunk.offset), ranks=range(1, b.ranks))


def built(algorithm: object, spec: VariantSpec, ranks: int, nbytes: int, collective: str = "all_to_all") -> Plan:
    layout = replace(layout_for(ranks, 6, 1 << 24, 4096, region_bytes=1 << 20), heap_card_bytes=1 << 22)
    redop = "avg" if "reduce" in collective else "sum" if "scan" in collective else "none"
    heap = InHeap(0) if spec.zero_copy else None
    recipe = Recipe(collective, spec.name, algorithm, spec)  # type: ignore[arg-type]
    call = Call(collective, spec.name, ranks, nbytes, "f32" if redop != "none" else "u8", redop, heap=heap)
    return catalog.build(recipe, layout, call)


@pytest.mark.each_value_once
@pytest.mark.parametrize("spec", VARIANTS.values(), ids=list(VARIANTS))
@pytest.mark.parametrize("ranks", [2, 3, 7, 13])
@pytest.mark.parametrize("nbytes", [64, 1000])
def test_words_for_many_are_words_for_each(spec: VariantSpec, ranks: int, nbytes: int) -> None:
    one, many = built(one_by_one, spec, ranks, nbytes), built(at_once, spec, ranks, nbytes)
    assert [part.streams for part in one.parts] == [part.streams for part in many.parts]
    assert one.frame == many.frame


@pytest.mark.each_value_once
@pytest.mark.parametrize("spec", [ALL, NAIVE, STAGED], ids=lambda spec: spec.name)
@pytest.mark.parametrize("ranks", [3, 4, 5, 8, 17])
@pytest.mark.parametrize("collective", ["all_reduce", "reduce", "reduce_scatter", "scan", "exscan"])
def test_a_fold_at_once_is_a_fold(
    collective: str, ranks: int, spec: VariantSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    for algorithm in (catalog.recipe(collective, "all").algorithm, folds_all_but_the_first):
        monkeypatch.setattr(folds, "FOLDED_AT_ONCE", 3)
        at_once = [part.streams for part in built(algorithm, spec, ranks, 3000, collective).parts]
        monkeypatch.setattr(folds, "FOLDED_AT_ONCE", 100)
        assert at_once == [part.streams for part in built(algorithm, spec, ranks, 3000, collective).parts]


def test_a_two_shot_of_many_ranks_still_computes_an_all_reduce() -> None:
    """Its records are made as columns; the contract is checked on what they do."""
    recipe = catalog.recipe("all_reduce", "two_shot")
    verify(built(recipe.algorithm, recipe.spec, 18, 4096, "all_reduce"))


@pytest.mark.each_value_once
@pytest.mark.parametrize("collective", ["all_gather", "all_reduce", "all_to_all", "gather", "reduce", "reduce_scatter"])
@pytest.mark.parametrize("cluster", [2, 5])
def test_two_levels_of_many_are_those_of_each(collective: str, cluster: int, monkeypatch: pytest.MonkeyPatch) -> None:
    topology = Topology.load("two-clusters")
    hosts = topology.hosts.model_copy(update={"count": 10 // cluster, "ranks_per_host": cluster})
    redop = "avg" if "reduce" in collective else "none"
    call = Call(collective, "hierarchical", 10, 5000, "f32", redop)

    def parts(at_once: int) -> list[object]:
        monkeypatch.setattr(level, "FOLDED_AT_ONCE", at_once)
        recipe = catalog.recipe(collective, "hierarchical")
        machine = topology.model_copy(update={"hosts": hosts})
        return [part.streams for part in plan_of(machine, recipe, call, machine.pool_space).parts]

    assert parts(1) == parts(100)
