"""The heap: arrays in the pool, the memory below them, and when it is free again."""
