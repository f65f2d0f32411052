"""Faults that happen to real runs: a script's faults come at their instructions, and every rank's end is judged."""

from faults.inject.judge import End, RankOutcome, Report, Verdict
from faults.inject.scenario import Scenario, run

__all__ = ["End", "RankOutcome", "Report", "Scenario", "Verdict", "run"]
