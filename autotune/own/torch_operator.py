"""A kernel of one's own as an operator of PyTorch, for compiled programs and gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autotune.core.dtypes import ELEMENTS
from autotune.core.errors import MissingDependencyError
from autotune.operations.parts import parsed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from autotune.operations.operation import Operation

NAMESPACE = "autotune_own"

_MADE: dict[str, tuple[str, Any]] = {}
"""Operators of this process by name, each with the folder of its kernel."""


def torch_operator(kernel: Callable[..., Any], operation: Operation, folder: str) -> Any:
    """``torch.ops.autotune_own.<name>``: inputs in order, and scalars by name or in order.

    It has a schema and results without contents, so that `torch.compile` and `torch.export` take
    it as it is; gradients are the caller's, by the `register_autograd` of what is returned.
    Operands in place are said to be changed, and are not among its results.

    The same kernel again is the same operator. Another one of a name that is taken is called
    ``<name>_<digest>``: PyTorch would have it silently take the place of the first.

    Args:
        kernel: what it calls: inputs in order, and scalars by name.
        operation: what that computes.
        folder: the name of its folder, ``<name>-<digest>``, which tells kernels apart.

    Returns:
        A `torch.library.CustomOpDef`.

    Raises:
        MissingDependencyError: PyTorch is not installed, or is older than 2.4.
    """
    try:
        from torch.library import custom_op
    except ImportError as error:
        raise MissingDependencyError(
            f"torch_operator of {operation.name} needs PyTorch 2.4 or newer: install the build "
            "for this machine from pytorch.org"
        ) from error
    name = operation.name
    if _MADE.get(name, (folder,))[0] != folder:
        name = folder.replace("-", "_")
    if name in _MADE:
        return _MADE[name][1]
    made = [place for place, each in enumerate(operation.outputs) if not each.read]
    scalars = [name for name, _ in operation.scalars]

    def call(*given: Any) -> Any:
        count = len(operation.inputs)
        found = kernel(*given[:count], **dict(zip(scalars, given[count:], strict=False)))
        results = found if isinstance(found, tuple) else (found,)
        return _results([results[place] for place in made])

    changed = [each.name for each in operation.inputs if each.read]
    operator = custom_op(
        f"{NAMESPACE}::{name}", call, mutates_args=changed, schema=_schema(operation)
    )
    operator.register_fake(lambda *given: _results(_empty(operation, given)))
    _MADE[name] = folder, operator
    return operator


def _results(tensors: Sequence[Any]) -> Any:
    """One tensor, several, or none, as operators give them."""
    return tensors[0] if len(tensors) == 1 else tuple(tensors) or None


def _schema(operation: Operation) -> str:
    """Arguments and results as PyTorch declares them."""
    arguments = [
        f"Tensor({chr(97 + place)}!) {each.name}" if each.read else f"Tensor {each.name}"
        for place, each in enumerate(operation.inputs)
    ]
    whole = dict(operation.integers)
    for name, default in operation.scalars:
        kind, number = ("int", int(default)) if name in whole else ("float", default)
        arguments.append(f"{kind} {name}={number}")
    results = ["Tensor"] * sum(not each.read for each in operation.outputs)
    given = results[0] if len(results) == 1 else f"({', '.join(results)})"
    return f"({', '.join(arguments)}) -> {given}"


def _empty(operation: Operation, given: Sequence[Any]) -> list[Any]:
    """Results without contents, of the shapes and types that follow from the operands."""
    import torch

    inputs = dict(zip((each.name for each in operation.inputs), given, strict=False))
    shapes = [(each.shape, inputs[each.name].shape) for each in operation.inputs]
    # Sizes stay symbols where they can: an expression is of numbers.
    sizes = {text: n for pair in shapes for text, n in zip(*pair, strict=True)}
    if not sizes.keys() >= {*operation.sizes}:
        sizes |= operation.solve([(texts, [*map(int, shape)]) for texts, shape in shapes], {})

    def extent(text: str) -> Any:
        known = {name: int(sizes[name]) for name in operation.sizes}
        return sizes[text] if text in sizes else parsed(text).evaluate(known)

    common = next(
        (inputs[each.name].dtype for each in operation.inputs if not each.dtype), torch.float32
    )
    result = getattr(torch, ELEMENTS[str(common).removeprefix("torch.")].result)
    return [
        given[0].new_empty(
            [extent(text) for text in each.shape],
            dtype=getattr(torch, each.dtype) if each.dtype else result,
        )
        for each in operation.outputs
        if not each.read
    ]
