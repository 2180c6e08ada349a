"""Vega, which draws the charts: in the page, and on its own for pictures."""

from __future__ import annotations

import functools
from typing import Any

from autotune.core.errors import MissingDependencyError
from autotune.core.installing import install_hint


def converter() -> Any:
    """The module that has Vega in it.

    Raises:
        MissingDependencyError: it is not installed.
    """
    try:
        import vl_convert
    except ImportError as error:
        raise MissingDependencyError(
            f"a report's charts need vl-convert-python: {install_hint('report')}"
        ) from error
    return vl_convert


@functools.cache
def bundle() -> str:
    """Vega, Vega-Lite and Vega-Embed as one script, which puts `vegaEmbed` on `window`.

    Raises:
        MissingDependencyError: it is not installed.
    """
    script: str = converter().javascript_bundle()
    # Within a page a script ends at the first end tag, wherever it stands.
    return script.replace("</script", "<\\/script").replace("<!--", "<\\!--")
