"""The rows of element types: what each says agrees with NumPy, DLPack and IEEE 754."""

from __future__ import annotations

import struct
import sys

import numpy as np
import pytest

from autotune.core import dtypes
from autotune.core.dtypes import (
    DTYPES,
    USUAL_DTYPES,
    WORDS,
    Dtype,
    dtype_name,
    from_dlpack,
    from_typestr,
)
from autotune.core.errors import MissingDependencyError

ROWS = DTYPES.values()


@pytest.mark.parametrize("row", ROWS, ids=DTYPES)
def test_a_row_agrees_with_numpy(row: Dtype) -> None:
    dtype = row.numpy
    assert (dtype.name, dtype.itemsize) == (row.name, row.itemsize)
    assert dtype.str in row.typestrs
    one = np.ones(1, dtype)
    # Half a unit in the last place of 1 is rounded to even; a little more is rounded up.
    assert (np.array([1 + row.unit_roundoff]).astype(dtype) == one).all()
    assert (np.array([1 + 1.01 * row.unit_roundoff + 2.0**-52]).astype(dtype) > one).all()
    assert np.array([row.smallest]).astype(dtype)[0] > 0
    assert np.array([row.smallest / 2]).astype(dtype)[0] == 0


@pytest.mark.parametrize("row", ROWS, ids=DTYPES)
def test_poison_is_a_nan_of_every_type_of_its_size(row: Dtype) -> None:
    word = row.word
    assert struct.calcsize(word.letter) == row.itemsize
    poison = np.array([word.poison], f"u{row.itemsize}")
    assert np.isnan(poison.view(row.numpy)).all()
    assert (poison != np.array([np.nan], row.numpy).view(poison.dtype)).all()


@pytest.mark.parametrize("row", ROWS, ids=DTYPES)
def test_names_lead_back_to_the_row(row: Dtype) -> None:
    for name in (row.name, row.name.upper(), *row.aliases):
        assert dtype_name(name) == row.name
    assert {from_typestr(each) for each in row.typestrs} == {row.name}
    assert from_dlpack(row.dlpack, 8 * row.itemsize, 1) == row.name
    assert from_dlpack(row.dlpack, 8 * row.itemsize, 4) == f"{row.name} x 4"


@pytest.mark.parametrize("row", ROWS, ids=DTYPES)
def test_products_are_exact_in_the_type_they_are_summed_in(row: Dtype) -> None:
    sums = row.accumulated
    assert sums.accumulation == sums.name
    assert sums.scalar is not None
    assert sums is row or sums.unit_roundoff <= row.unit_roundoff**2 / 2


def test_what_is_not_known_keeps_its_name() -> None:
    assert dtype_name(" Int8 ") == "int8"
    assert from_typestr("<i4") == "<i4"
    assert from_dlpack(0, 32, 1) == "kind 0 of 32"
    assert set(USUAL_DTYPES) == {"float32", "float64"}
    assert {row.itemsize for row in ROWS} <= set(WORDS)


def test_bfloat16_says_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    dtypes._numpy_dtype.cache_clear()
    with pytest.raises(MissingDependencyError, match="pip install ml_dtypes"):
        _ = DTYPES["bfloat16"].numpy
