"""The shipped backends, one module each, whose name is the backend's and whose ``BACKEND`` is the backend.

A new file here is a new backend, and nothing else has to name it: its contract is `cxlemu.memory.backend.Backend`.
"""
