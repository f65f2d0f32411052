"""Whole lines, granules and pages."""

from __future__ import annotations


def round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def round_down(value: int, multiple: int) -> int:
    return value // multiple * multiple
