"""What pytest loads at its start: the plugin in `faults`, unless a module of the user's hides that package.

`python -m pytest` puts the current folder first: a `faults.py` there must not end a test run that needs none of ours.
"""

from importlib.util import find_spec
from pathlib import Path

_spec = find_spec("faults")
if _spec is not None and any((Path(folder) / "testing").is_dir() for folder in _spec.submodule_search_locations or ()):
    pytest_plugins = ["faults.testing.pytest_plugin"]
else:

    def pytest_report_header() -> str:
        """Say why there are no fixtures."""
        where = "not installed" if _spec is None else f"hidden by {_spec.origin}"
        return f"cxlemu: no fixtures: its package 'faults' is {where}"
