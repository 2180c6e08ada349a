"""From source text to binaries for GPUs, and what a binary says of itself."""
