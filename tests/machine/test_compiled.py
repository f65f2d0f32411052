"""Numbers that C and Python both know come from C, or are compared with it when a module is imported."""

import pytest

from cxlemu import _native, _virtual
from cxlemu.compiled import check_compiled
from cxlemu.plan import Op, RedOp
from faults.prove import _pass
from faults.prove.proof import DEADLOCK, RULES


def test_a_module_of_another_version_is_refused_with_a_sentence() -> None:
    with pytest.raises(ImportError, match=r"cxlemu\._native was compiled .*: WRITE is 1 there and 2 here"):
        check_compiled("cxlemu._native", _native.CONSTANTS, {"WRITE": 2})
    with pytest.raises(ImportError, match=r"NOVEL is unknown there and 1 here"):
        check_compiled("cxlemu._native", _native.CONSTANTS, {"NOVEL": 1})


def test_every_instruction_operation_and_rule_has_the_same_number_in_c() -> None:
    assert {op.name for op in Op} | {redop.name for redop in RedOp if redop} <= set(_native.CONSTANTS)
    assert [_pass.CONSTANTS[rule.upper()] for rule in (*RULES, DEADLOCK)] == list(range(len(RULES) + 1))
    assert _virtual.CONSTANTS["OVER"] == 0
