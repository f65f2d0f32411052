"""Faults that happen to real runs: a script's faults come at their instructions, and every rank's end is judged.

    report = run(Scenario(collective="all_gather", ranks=3, script=Script.load(path)))

Importing anything from here registers the kinds of faults that cxlemu ships (`faults.inject.model`), and those of
installed packages.
"""

from faults.inject import model as model  # first: it fills FAULTS
from faults.inject.effects import before
from faults.inject.fault import FAULTS, Fault, FaultKind, Requirement, When, next_ring, register, register_installed
from faults.inject.injection import Injection
from faults.inject.judge import RankEnd, RankOutcome, ScenarioReport, ScenarioVerdict
from faults.inject.places import InstructionPlace
from faults.inject.scenario import Scenario, run
from faults.inject.script import NatureRates, Script

__all__ = [
    "FAULTS",
    "Fault",
    "FaultKind",
    "Injection",
    "InstructionPlace",
    "NatureRates",
    "RankEnd",
    "RankOutcome",
    "Requirement",
    "Scenario",
    "ScenarioReport",
    "ScenarioVerdict",
    "Script",
    "When",
    "before",
    "next_ring",
    "register",
    "run",
]

register_installed()
