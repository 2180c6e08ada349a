"""What families say of GPUs: grids, tensor maps, registers, C++ text."""
