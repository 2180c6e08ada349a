"""Which GPUs there are, what they offer, and those that are known by name."""
