"""Plain-text tables."""

from __future__ import annotations

from collections.abc import Sequence


def table(header: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[str] = ()) -> str:
    """Columns padded to their widest cell; `right` names the columns aligned right."""
    widths = [max(len(row[column]) for row in [header, *rows]) for column in range(len(header))]
    numeric = [name in right for name in header]

    def line(cells: Sequence[str]) -> str:
        padded = (
            cell.rjust(width) if is_number else cell.ljust(width)
            for cell, width, is_number in zip(cells, widths, numeric, strict=True)
        )
        return "  ".join(padded).rstrip()

    return "\n".join([line(header), *(line(row) for row in rows)])
