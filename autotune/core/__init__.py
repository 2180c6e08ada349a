"""Words that everything here is said in, and small tools; nothing here imports another package."""
