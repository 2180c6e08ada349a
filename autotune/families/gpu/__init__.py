"""Families on GPUs: grids, tensor maps, registers, C++ text."""
