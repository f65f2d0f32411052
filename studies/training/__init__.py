"""Training steps of language models on modelled fabrics: what is computed, what is sent, and what of it is exposed.

``language_model`` and ``accelerator`` are files with provenance, ``parallelism`` says which rank holds what,
``fabrics`` what a collective takes (our plans in virtual time), ``step`` makes a step of both, ``timeline`` runs it and
tells where time went.
"""
