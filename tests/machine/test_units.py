"""Sizes as people write and read them."""

import click
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from cxlemu.cli.params import BytesParam
from cxlemu.errors import ArgumentError
from cxlemu.units import format_bytes, format_numbers, parse_bytes
from tests.helpers.tables import with_rows


@with_rows(
        (123, 123), ("123", 123), ("0", 0), ("7B", 7), ("64K", 65536), ("64k", 65536), ("1KB", 1024),
        ("1KiB", 1024), ("1 M", 2**20), (" 1MiB ", 2**20), ("1.5M", 3 * 2**19),
        ("128GiB", 2**37), ("2TB", 2**41),
)  # fmt: skip
def test_every_suffix_is_a_power_of_1024(text: str | int, nbytes: int) -> None:
    assert parse_bytes(text) == nbytes


@with_rows("", "K", "1X", "1KX", "-1", "1e3", "0x10", "1_000", "1 2", "0.3", "1.5", "nan", "inf", "٣", "9" * 400,
     -1, True, 1.5, None
)  # fmt: skip
def test_what_is_not_a_size_is_refused(text: str) -> None:
    with pytest.raises(ArgumentError, match="bytes"):
        parse_bytes(text)


@with_rows((0, "0 B"), (1023, "1023 B"), (1024, "1 KiB"), (65536, "64 KiB"), (1536, "1.5 KiB"),
     (10**9, "953.7 MiB"), (1023 * 2**30, "1023 GiB"), (2**70, "1024 EiB")
)  # fmt: skip
def test_sizes_are_printed_in_the_largest_unit(nbytes: int, text: str) -> None:
    assert format_bytes(nbytes) == text


@given(st.integers(0, 1023), st.integers(0, 6))
def test_a_printed_size_reads_back(number: int, power: int) -> None:
    assert parse_bytes(format_bytes(number * 1024**power)) == number * 1024**power


def test_a_size_on_the_command_line() -> None:
    @click.command()
    @click.option("--size", type=BytesParam())
    def command(size: int) -> None:
        click.echo(size)

    assert CliRunner().invoke(command, ["--size", "64K"]).output == "65536\n"
    refused = CliRunner().invoke(command, ["--size", "64Q"])
    assert refused.exit_code == 2
    assert "'64Q' is not a size in bytes" in refused.output


def test_numbers_for_people() -> None:
    assert format_numbers([2, 3, 4, 5, 7, 8]) == "2-5, 7, 8"
    assert format_numbers([1]) == "1" and format_numbers([]) == "" and format_numbers([1, 2, 4, 5, 6]) == "1, 2, 4-6"
