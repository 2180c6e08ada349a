"""Arrays of any library in the memory of a GPU, and kernels called on them."""
