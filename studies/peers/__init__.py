"""Implementations that are compared: our collectives, those of MPI and Gloo, and the machine itself.

Each is a group of worker processes that obey one coordinator. The modules that workers run (`worker`, `mpi`, `gloo`)
need nothing but NumPy and what they measure, so that a peer may live in a Python environment of its own.
"""
