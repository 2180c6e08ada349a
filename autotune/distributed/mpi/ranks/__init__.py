"""A set of ranks: started, met, asked, guarded, and ended."""
