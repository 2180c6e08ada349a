"""What all charts share: the type of a specification, scales, and the colours of studies.

Rows have short fixed fields, and names from studies are only ever values: nothing that a study
says becomes part of an expression. Colours and fonts are the page's, see ``assets/page.js``.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autotune.reporting.amounts import Measure

Spec: TypeAlias = "dict[str, Any]"


def scale(measure: Measure) -> Spec:
    """Rates begin at nothing; times are compared by powers."""
    return {"zero": True} if measure.is_rate else {"type": "log", "nice": False, "padding": 8}


def ramp(measure: Measure) -> Spec:
    """Bright is fast, whichever way the measure goes."""
    return {"scheme": "viridis", "reverse": not measure.is_rate}


def of_names(names: Sequence[str]) -> Spec:
    """A colour for each study, and a legend where there are several."""
    legend = {"legend": {"title": None, "columns": 1, "labelLimit": 480}}
    return {
        "field": "s",
        "type": "nominal",
        "scale": {"domain": list(names)},
        **(legend if len(names) > 1 else {"legend": None}),
    }


def powers(low: float, high: float) -> list[float]:
    """Round numbers between two, for logarithmic axes: 1, 2 and 5 of a power, if they are few."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    digits = (1, 2, 5) if last - first <= 3 else (1,)
    found = [float(f"{digit}e{power}") for power in range(first, last + 1) for digit in digits]
    return [each for each in found if low <= each <= high]


def field(name: str, title: str, format: str = "") -> Spec:
    """A line of a tooltip."""
    return {"field": name, "title": title, **({"format": format} if format else {})}
