"""Compiled candidates, and what it takes to launch them."""
