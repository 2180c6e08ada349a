"""Ranks with GPUs: matrices in a GPU's memory, and the messages between them."""
