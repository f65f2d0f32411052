"""Sentences that several commands' help has. Imports nothing."""

ALGORITHM_HELP = "An algorithm of your own; executes the file."
