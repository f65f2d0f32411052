"""Protocols (faults/explore/programs.py) executed by real ranks on a pool: one interleaving per run.

``memory`` does a step on words that lie in a pool's lines (``places``), ``rank`` drives one rank's generator,
``reports`` tells all ranks how each of them ended, ``run`` repeats it in a world of ranks.
"""
