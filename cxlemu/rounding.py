"""Rounding to whole lines, granules and pages."""

from __future__ import annotations


def round_up(value: int, multiple: int) -> int:
    """Return the least multiple of ``multiple`` that is not below ``value``."""
    return -(-value // multiple) * multiple


def round_down(value: int, multiple: int) -> int:
    """Return the greatest multiple of ``multiple`` that is not above ``value``."""
    return value // multiple * multiple
