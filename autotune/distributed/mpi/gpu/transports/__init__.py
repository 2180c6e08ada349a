"""Ways of a matrix from one rank's GPU to another's."""
