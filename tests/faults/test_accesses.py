"""Which bytes an instruction loads and stores is said in plan/accesses.py; what C has of it is the same."""

import pytest

from cxlemu.plan import Op
from cxlemu.plan.accesses import LOADED, STORED
from cxlemu.plan.instructions import OPERAND_FIELDS
from faults.prove import _pass
from faults.prove.calls import check_accesses


def fields(bits: int) -> tuple[str, ...]:
    return tuple(name for k, name in enumerate(OPERAND_FIELDS) if bits >> k & 1)


@pytest.mark.parametrize("op", Op, ids=lambda op: op.name)
def test_the_prover_loads_and_stores_what_an_instruction_does(op: Op) -> None:
    loads, stores = _pass.accesses()[op]
    assert (fields(loads), fields(stores)) == (LOADED.get(op, ()), STORED.get(op, ()))


@pytest.mark.parametrize("column, name", [(0, "READ loads is 0 there and 4 here"), (1, "READ stores is 0 there")])
def test_another_table_is_not_imported(column: int, name: str) -> None:
    rows = [list(row) for row in _pass.accesses()]
    rows[Op.READ][column] = 0
    with pytest.raises(ImportError, match=name):
        check_accesses([(loads, stores) for loads, stores in rows])
