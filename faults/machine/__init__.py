"""The abstract machine: hosts with caches that nothing keeps coherent, around one pool, word by word.

``program`` is what it runs, ``state`` what it knows, ``steps`` what can happen; ``schedule`` writes down what did.
"""
