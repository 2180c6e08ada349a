"""PyTorch's products by tuned kernels: an operator, a module, and a switch for whole programs.

    from autotune.torch import Linear, convert, linear, mm, use_tuned

Importing it imports PyTorch; importing `autotune` does not.
"""

from autotune.core.errors import MissingDependencyError

try:
    import torch as _torch  # noqa: F401 - what follows needs it
except ImportError as error:
    raise MissingDependencyError(
        "autotune.torch needs PyTorch, which is not installed: install the build for this "
        "machine from pytorch.org"
    ) from error

from autotune.torch.operator import Linear, convert, gated, linear, mm
from autotune.torch.rules import register as _register
from autotune.torch.stacks import bmm, grouped_mm
from autotune.torch.switch import Selection, disable, enable, use_tuned

_register()

__all__ = [
    "Linear",
    "Selection",
    "bmm",
    "convert",
    "disable",
    "enable",
    "gated",
    "grouped_mm",
    "linear",
    "mm",
    "use_tuned",
]


def __dir__() -> list[str]:
    return __all__
