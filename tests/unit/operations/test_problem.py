import re

import numpy as np
import pytest

from autotune.core.errors import InputError, ProblemError
from autotune.distributed.mpi.target import MpiTarget
from autotune.operations.problem import GEMM, Gemm, admits, gemm_from_key


def test_shapes_follow_the_layout() -> None:
    sizes = {"m": 2, "n": 3, "k": 5}
    assert (Gemm(**sizes).a_shape, Gemm(**sizes).b_shape) == ((2, 3), (3, 5))
    transposed = Gemm(**sizes, layout="tt")
    assert (transposed.a_shape, transposed.b_shape, transposed.c_shape) == ((3, 2), (5, 3), (2, 5))


def test_fields_are_normalised() -> None:
    problem = Gemm(np.int64(4), 5, 6, dtype=np.float64, out_dtype="float64")
    assert problem == Gemm(4, 5, 6, dtype="float64")
    assert problem.key()["m"] == 4
    assert type(problem.m) is int
    assert Gemm(4, 5, 6, dtype=np.dtype("float32")).dtype == "float32"


def test_key_round_trips() -> None:
    problem = Gemm(7, 8, 9, dtype="float64", layout="nt", accuracy="strassen", threads=2)
    assert gemm_from_key(problem.key()) == problem


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"m": 0}, "m must"),
        ({"n": -3}, "n must"),
        ({"k": 2.5}, "k must"),
        ({"m": True}, "m must"),
        ({"m": "8"}, "m must"),
        ({"dtype": "int8"}, "dtype must"),
        ({"dtype": 3}, "dtype must"),
        ({"layout": "xx"}, "layout must"),
        ({"accuracy": "exact"}, "accuracy must"),
        ({"threads": 0}, "threads must"),
    ],
)
def test_bad_fields_are_named(fields: dict, named: str) -> None:
    with pytest.raises(ProblemError, match=named):
        Gemm(**({"m": 1, "n": 1, "k": 1} | fields))


def test_labels_tell_problems_apart() -> None:
    problems = [
        Gemm(1, 2, 3),
        Gemm(1, 2, 3, dtype="float64"),
        Gemm(1, 2, 3, layout="tn"),
        Gemm(1, 2, 3, accuracy="strassen"),
        Gemm(1, 2, 3, dtype="float16", accuracy="ieee"),
        Gemm(1, 2, 3, threads=1),
        Gemm(1, 2, 3, threads=2),
    ]
    assert len({problem.label for problem in problems}) == len(problems)


@pytest.mark.parametrize(
    "text", ["", "1x2", "1x2x3x4", "0x1x1", "-1x2x3", "axbxc", "1 x2x3", "²x1x1"]
)
def test_bad_shapes_are_refused(text: str) -> None:
    with pytest.raises(ProblemError, match="MxNxK"):
        GEMM.parse_shape(text)


def test_shapes_are_read() -> None:
    assert GEMM.parse_shape("16x4096X7") == (16, 4096, 7)


def test_ieee_serves_every_class() -> None:
    assert admits("ieee", "ieee")
    assert admits("strassen", "ieee")
    assert admits("strassen", "strassen")
    assert not admits("ieee", "strassen")


@pytest.mark.parametrize(
    ("shape", "told"),
    [
        ("7x7x9223372036854775808", "must be a number < 2^63"),
        ("7x7x99999999999999999999", "three whole numbers < 2^63"),
        (
            "99999999x99999999x99999999",
            "* K of operation 'gemm' must be a number < 2^63",
        ),
        ("7x0x7", "three whole numbers >= 1"),
    ],
)
def test_a_shape_that_is_too_large_is_told_the_upper_limit(shape: str, told: str) -> None:
    with pytest.raises(InputError, match=re.escape(told)):
        _ = GEMM.at(GEMM.parse_shape(shape)).flops


@pytest.mark.parametrize("ranks", [10**9, 2**70])
def test_ranks_that_nobody_has_are_refused_at_once(ranks: int) -> None:
    with pytest.raises(InputError, match=f"ranks must be at most 1048576, got {ranks}"):
        MpiTarget(ranks)
