"""The rows of columns in which an expression is true, as tests compare them with single points."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.space import Expression


def true_rows(expression: Expression, names: Mapping[str, Any]) -> NDArray[np.bool_]:
    """Where the expression has a value and that is true; raises ExpressionError."""
    values, defined = expression.evaluate_columns(names)
    truth = values.astype(bool)
    return truth if defined is None else truth & defined
