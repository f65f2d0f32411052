"""What flags offer and where they begin. Imports nothing, so that --help is there at once."""

ENGINES = ("reference", "native")
TIME_SCALE_MIN, TIME_SCALE_MAX = 1e-3, 1e6
DEFAULT_TOPOLOGY = "six-cards"
