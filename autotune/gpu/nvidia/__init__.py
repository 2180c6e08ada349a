"""CUDA: devices, compilers and the driver of NVIDIA GPUs."""
