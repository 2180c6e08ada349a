"""The target `mpi`: emitted mpi4py programs, measured by a set of ranks that outlives trials."""
