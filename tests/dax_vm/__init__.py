"""Real device-DAX without hardware: virtual machines that share NVDIMMs, run by ``python -m tests.dax_vm``."""
