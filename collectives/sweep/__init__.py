"""Sweeps over calls, in the terms of nccl-tests: cases, measured natively or in virtual time."""
