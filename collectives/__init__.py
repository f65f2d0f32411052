"""Collectives are programs for the machine: plans, what they must achieve, and the communicator users call."""
