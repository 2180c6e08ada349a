"""Operations: problems, their references, and verification.

Nothing here knows how or where something is computed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.core.faces import lazily

if TYPE_CHECKING:
    from autotune.operations.accuracy import Tolerance as Tolerance
    from autotune.operations.cases import Case as Case
    from autotune.operations.formula import Formula as Formula
    from autotune.operations.operation import Operation as Operation
    from autotune.operations.problem import Gemm as Gemm
    from autotune.operations.problem import Problem as Problem
    from autotune.operations.problem import Product as Product
    from autotune.operations.verification import Check as Check
    from autotune.operations.verification import Verdict as Verdict

_HOMES = {
    "Case": "cases",
    "Check": "verification",
    "Formula": "formula",
    "Gemm": "problem",
    "Operation": "operation",
    "Problem": "problem",
    "Product": "problem",
    "Tolerance": "accuracy",
    "Verdict": "verification",
}

__all__ = [*_HOMES]
__getattr__ = lazily(__name__, _HOMES)
