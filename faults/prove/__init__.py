"""The happens-before prover: a plan is right in every interleaving, whatever caches do, or here is why not.

Which signal satisfies which wait is the same in all executions of a plan (checked: every doorbell has one writer and
rising values, and nothing branches on data). So one pass in any order that the waits allow, with a vector clock for
every stream, decides them all.
"""

from faults.prove.calls import prove_calls
from faults.prove.proof import RULES, ProgramPoint, Proof, Violation
from faults.prove.sequences import prove

__all__ = ["RULES", "ProgramPoint", "Proof", "Violation", "prove", "prove_calls"]
