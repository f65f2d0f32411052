"""Sweeps of faults: many scenarios, their findings made small, told and kept."""
