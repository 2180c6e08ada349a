"""Evaluators: compile, run, verify and time candidates on a device.

Importing this package imports no compiler and no device library; the modules of a target do,
when they are used.
"""
