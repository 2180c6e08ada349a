"""Emitted sources on a GPU; binaries are made and judged without a device, too.

`interface`, `vendor` and `driver` are what the rest knows of a GPU. Compiling, launches, arrays
and measuring are built on them; `nvidia` lies on top, and is found by its name.
"""
