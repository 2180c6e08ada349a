"""Compiling for CUDA devices and judging what came out, with or without a device."""
