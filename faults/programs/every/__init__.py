"""Every interleaving of a program's steps on the pool, and of what caches do: ``cxlemu exec --every``."""
