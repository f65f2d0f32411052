"""The version of all four packages; pyproject.toml has the same, and a test compares them."""

__version__ = "0.2.0"
