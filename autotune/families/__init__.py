"""Kernel families: two files each, from which source text, a search space and launches follow."""
