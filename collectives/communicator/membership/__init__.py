"""Membership: who the members are, the room that they share, and which of them go on when some are lost."""
