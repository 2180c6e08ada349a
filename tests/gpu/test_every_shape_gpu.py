"""The benchmark of shapes that nobody tuned for, on a GPU: a few shapes of every kind."""

from __future__ import annotations

import pytest
from every_shape import measured
from shape_draws import Shape
from shape_rows import Asked, Header, Row

from autotune.gpu.nvidia.cublas import find_cublas

SHAPES = (Shape(1, 512, 513), Shape(300, 64, 1), Shape(255, 257, 129), Shape(1024, 512, 256))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_shapes_are_verified_and_timed_beside_cublas(dtype: str) -> None:
    if find_cublas() is None:
        pytest.skip("there is no cuBLAS")
    asked = Asked(SHAPES, dtype, 0, None, 0, 0.0, True, False, 0, None, (), "- asked")
    first, *found = measured(asked, "cuda")
    assert isinstance(first, Header)
    assert "copying" in first.text[-1]
    rows = [each for each in found if isinstance(each, Row)]
    assert [each.shape for each in rows] == list(SHAPES)
    for each in rows:
        assert not each.failure
        assert each.ratio is not None
        assert each.served is not None
        assert each.served.error <= 1
        assert each.seconds > 0
        assert "blocks" in each.served.launch
        assert each.peer.startswith("cuBLAS")
