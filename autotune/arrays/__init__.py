"""Arrays of NumPy, PyTorch, CuPy, and of any library with DLPack: one `Library` each."""
