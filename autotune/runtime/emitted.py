"""Imports of emitted programs.

Sources that `autotune emit` printed, or that somebody exported, go on working: whatever moves
within the package, these names stay here.
"""

from autotune.distributed.hybrid.kernel import open_machine as open_machine
from autotune.distributed.mpi.kernel import tuned_product as tuned_product
