"""Vega, which draws the charts: in the page, and on its own for pictures."""

from __future__ import annotations

import functools
from typing import Any

from autotune.core.errors import MissingDependencyError


def converter() -> Any:
    """The module that has Vega in it.

    Raises:
        MissingDependencyError: it is not installed.
    """
    try:
        import vl_convert
    except ImportError as error:
        raise MissingDependencyError(
            "a report's charts need vl-convert-python: pip install 'autotune-kernels[report]'"
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
