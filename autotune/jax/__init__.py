"""JAX's matrix products by tuned kernels, inside compiled programs as well.

    from autotune.jax import matmul

Importing it imports JAX; importing `autotune` does not.
"""

from autotune.core.errors import MissingDependencyError

try:
    import jax as _jax  # noqa: F401 - what follows needs it
except ImportError as error:
    raise MissingDependencyError(
        "autotune.jax needs JAX, which is not installed: pip install jax"
    ) from error

from autotune.jax.products import matmul

__all__ = ["matmul"]


def __dir__() -> list[str]:
    return __all__
