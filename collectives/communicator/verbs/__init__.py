"""Verbs: what users call, for arrays, blocks of unequal sizes, many arrays, matrices and objects."""
