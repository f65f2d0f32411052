"""Real device-DAX without hardware: virtual machines that share memory devices, ``python -m tests.dax_vm``."""
