"""The options of ``cxlemu doctor``."""

from pathlib import Path

import click

from cxlemu.cli.options import JsonFlags, concept, flag


class DoctorFlags(JsonFlags):
    topology_file: Path | None = flag(
        "--calibrate",
        type=click.Path(path_type=Path),
        help="Measure memory and cores, and write a topology of this machine.",
    )
    devices: tuple[str, ...] = flag(
        "--device",
        multiple=True,
        metavar="PATH",
        help="With --calibrate: measure this formatted card instead of shared memory; repeat it for each card.",
    )
    certificates: tuple[Path, ...] = flag(
        "--certificate",
        multiple=True,
        type=click.Path(path_type=Path),
        help="With --calibrate: write what was seen of the cards and what was not, as .html or .json.",
    )
    litmus_file: Path | None = flag(
        "--litmus",
        type=click.Path(path_type=Path),
        help="File of cxlemu litmus --backend dax --json, for the certificate.",
    )
    verbose: bool = concept("verbose", help="Show all rows: also those that are ok, or absent and optional.")
    accelerator: str | None = flag(
        "--accelerator",
        metavar="cuda:N|fake",
        help="Device to examine, instead of all GPUs; with --calibrate, the device that holds the ranks' arrays.",
    )
