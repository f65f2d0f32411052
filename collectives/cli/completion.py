"""The words of collectives that a shell completes: see cxlemu/cli/completion.py."""


def collectives() -> list[str]:
    from collectives.contracts import COLLECTIVES

    return sorted(COLLECTIVES)


def variants() -> list[str]:
    """Return the names of all variants of any collective, and the words that stand for several."""
    from collectives.algorithms import catalog

    names = {name for each in collectives() for name in (*catalog.variants(each), *catalog.pushing(each))}
    return ["auto", "every", *sorted(names)]


def datatypes() -> list[str]:
    from cxlemu.plan import DTYPES

    return ["all", *DTYPES]


def reductions() -> list[str]:
    from cxlemu.choices import REDOPS

    return ["all", *REDOPS]


WORDS = {
    "collective": collectives,
    "collectives": collectives,
    "program": collectives,
    "variant": variants,
    "variants": variants,
    "datatype": datatypes,
    "dtype": datatypes,
    "dtypes": datatypes,
    "op": reductions,
    "ops": reductions,
}
