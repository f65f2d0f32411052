"""Serving of language models: requests, instances that batch them, and a store of keys and values that they reuse.

``requests`` reads and makes traces, ``blocks`` is a cache of blocks, ``places`` says where a store's blocks lie and
what moving them takes, ``iterations`` how long an instance computes, ``instance`` what it batches, ``simulation`` runs
all of it in virtual time, ``outcome`` sums it up, ``varied`` gives answers as intervals.
"""
