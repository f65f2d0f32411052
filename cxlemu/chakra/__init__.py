"""Chakra execution traces (MLCommons): what other simulators, ASTRA-sim among them, take as their input."""
