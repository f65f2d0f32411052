"""Several jobs on one fabric: each alone and beside the others, and how much slower it is for it.

``job`` says what a job is, ``rounds`` has jobs that repeat collectives or training steps, ``server`` one that serves
requests, ``beside`` runs them and compares.
"""
