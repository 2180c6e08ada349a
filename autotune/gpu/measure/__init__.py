"""Measuring on a GPU: the evaluator, the process that owns the device, and what it checks."""
