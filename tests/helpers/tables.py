"""Tables of cases: a test's parameters are named once, where it takes them."""

from collections.abc import Callable
from inspect import signature
from typing import Any

import pytest


def with_rows(*cases: Any, **how: Any) -> Callable[[Callable[..., Any]], Any]:
    """Run the test below for each row, whose cells are its first parameters; what is no tuple is a row of one cell."""

    def table(test: Callable[..., Any]) -> Any:
        first = getattr(cases[0], "values", cases[0])  # of a pytest.param
        names = [*signature(test).parameters][: len(first) if isinstance(first, tuple) else 1]
        return pytest.mark.parametrize(names if isinstance(first, tuple) else names[0], cases, **how)(test)

    return table
