import numpy as np
import pytest

from autotune.arrays.host import check_operands
from autotune.core.errors import OperandError
from autotune.operations.problem import Gemm

PROBLEM = Gemm(4, 5, 6)


def operands() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return tuple(np.ones(shape, np.float32) for shape in [(4, 5), (5, 6), (4, 6)])


def test_out_is_allocated() -> None:
    a, b, _ = operands()
    out = check_operands(PROBLEM, (a, b), None, {"beta": 0.0})
    assert (out.shape, out.dtype) == ((4, 6), np.float32)


def test_views_with_a_leading_dimension_are_taken() -> None:
    a, b, _ = operands()
    wide = np.zeros((4, 9), np.float32)
    out = check_operands(PROBLEM, (a, b), wide[:, 2:8], {"beta": 0.0})
    assert out.base is wide


def test_read_only_inputs_are_taken() -> None:
    a, b, out = operands()
    a.flags.writeable = b.flags.writeable = False
    assert check_operands(PROBLEM, (a, b), out, {"beta": 1.0}) is out


def test_disjoint_halves_of_one_array_do_not_overlap() -> None:
    buffer = np.zeros((4, 11), np.float32)
    _, b, _ = operands()
    check_operands(PROBLEM, (buffer[:, :5], b), buffer[:, 5:], {"beta": 0.0})


def bad_out(kind: str) -> np.ndarray:
    if kind == "read-only":
        out = np.zeros((4, 6), np.float32)
        out.flags.writeable = False
        return out
    if kind == "row-major":
        return np.zeros((6, 4), np.float32).T
    if kind == "shape":
        return np.zeros((6, 4), np.float32)
    if kind == "dtype":
        return np.zeros((4, 6))
    assert kind == "NumPy array"
    return [[0.0] * 6] * 4  # type: ignore[return-value]


@pytest.mark.parametrize("kind", ["read-only", "row-major", "shape", "dtype", "NumPy array"])
def test_bad_out_is_named(kind: str) -> None:
    a, b, _ = operands()
    with pytest.raises(OperandError, match=kind) as caught:
        check_operands(PROBLEM, (a, b), bad_out(kind), {"beta": 0.0})
    assert str(caught.value).startswith("out ")
    assert "\n" not in str(caught.value)


def test_overlap_is_named() -> None:
    square = Gemm(4, 4, 4)
    a, b = np.ones((4, 4), np.float32), np.ones((4, 4), np.float32)
    with pytest.raises(OperandError, match="out overlaps a"):
        check_operands(square, (a, b), a, {"beta": 0.0})
    with pytest.raises(OperandError, match="out overlaps b"):
        check_operands(square, (a, b), b[::1], {"beta": 0.0})


def test_rows_that_overlap_each_other_are_refused() -> None:
    a, b, _ = operands()
    base = np.zeros(16, np.float32)
    out = np.lib.stride_tricks.as_strided(base, (4, 6), (8, 4))
    with pytest.raises(OperandError, match="row-major"):
        check_operands(PROBLEM, (a, b), out, {"beta": 0.0})


@pytest.mark.parametrize(
    ("position", "operand", "named"),
    [
        (0, np.ones((5, 4), np.float32), "a must have shape"),
        (1, np.ones((5, 6), np.float64), "b must have dtype"),
        (0, np.ones((4, 5), ">f4"), "a must have dtype float32 in native byte order"),
        (1, None, "b must be a NumPy array"),
        (0, np.ones(20, np.float32), "a must have shape"),
    ],
)
def test_bad_inputs_are_named(position: int, operand: object, named: str) -> None:
    inputs: list = list(operands()[:2])
    inputs[position] = operand
    with pytest.raises(OperandError, match=named):
        check_operands(PROBLEM, inputs, None, {"beta": 0.0})


def test_beta_needs_out() -> None:
    a, b, _ = operands()
    with pytest.raises(OperandError, match="pass out="):
        check_operands(PROBLEM, (a, b), None, {"beta": 0.5})
