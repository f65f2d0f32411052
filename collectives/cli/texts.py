"""Sentences that the help of several commands shares. Imports nothing."""

ALGORITHM_HELP = "An algorithm of your own; executes the file."
