"""Targets of many processes or devices: ranks of MPI, and a host with its GPU."""
