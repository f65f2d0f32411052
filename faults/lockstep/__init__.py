"""All ranks of a world in one thread, on real bytes: schedules, orders, and witnesses of violations."""
