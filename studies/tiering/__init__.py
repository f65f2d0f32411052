"""Memory in tiers: which pages lie where, policies that move them, and what that costs memory-bound workloads.

``placement`` says which page lies in which tier, ``policies`` what moves and when, ``workloads`` which pages are
touched, ``tiers`` what a topology has of memory, ``program`` makes a plan of all that, which the virtual engine times,
and ``study`` varies the working set.
"""
