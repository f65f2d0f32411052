"""Programs that others wrote, in C, C++ and Python: run on the emulated pool, and checked as they run."""
