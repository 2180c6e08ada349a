"""Kernel families: two files each, from which source text, a search space and launches follow.

A family's TOML file is read, never executed; its template becomes source text, the same for the
same configuration wherever it is rendered. Each target states the `family.Language` of its
sources.
"""
