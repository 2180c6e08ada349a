"""How kernels are judged: processes that may be lost, races, rounds, noise and verdicts.

Importing this package imports no compiler and no device library; the modules of a target do,
when they are used.
"""
