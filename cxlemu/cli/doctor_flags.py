"""The options of ``cxlemu doctor``."""

from pathlib import Path

from cxlemu.cli.options import JsonFlags, concept, flag, path


class DoctorFlags(JsonFlags):
    topology_file: Path | None = path(
        "--calibrate", help="Measure memory and cores, and write a topology of this machine."
    )
    devices: tuple[str, ...] = flag(
        "--device",
        multiple=True,
        metavar="PATH",
        help="With --calibrate: measure this formatted card instead of shared memory; repeat it for each card.",
    )
    certificates: tuple[Path, ...] = path(
        "--certificate",
        multiple=True,
        help="With --calibrate: write what was observed of the cards and what was not, as .html or .json.",
    )
    litmus_file: Path | None = path("--litmus", help="File of cxlemu litmus --backend dax --json, for the certificate.")
    verbose: bool = concept("verbose", help="Show all rows, including those that are ok, or optional and absent.")
    accelerator: str | None = flag(
        "--accelerator",
        metavar="cuda:N|fake",
        help="Device to examine, instead of all GPUs; with --calibrate, the device that holds the ranks' arrays.",
    )
