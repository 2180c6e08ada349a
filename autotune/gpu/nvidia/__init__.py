"""NVIDIA's GPUs: their driver by PyCUDA or the driver's own bindings, their compilers, cuBLAS."""
