"""What `matmul` needs of the libraries that arrays are of."""
