"""The package is layered: a module imports from its own layer and from those below it."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import autotune

if TYPE_CHECKING:
    from collections.abc import Iterator

# From the bottom up. A name stands for the module or package and everything in it.
LAYERS = (
    ("printable",),
    ("suggestions",),
    ("errors", "forking"),
    ("formula", "schedule"),
    (
        "configuration",
        "deadline",
        "measurement",
        "problem",
        "device",
        "paths",
        "facts",
        "interrupt",
        "pace",
        "preset_schedule",
        "statistics",
        "cuda_limits",
        "mpi_limits",
        "hybrid_limits",
    ),
    ("grid",),
    ("cost_model",),
    ("space",),
    ("product",),
    ("family", "occupancy"),
    ("offers",),
    ("invocation",),
    ("resource_model",),
    ("templating", "toml_table", "known_gpus", "presets"),
    (
        "rendering",
        "c_expression",
        "cuda_source",
        "family_files",
        "family_index",
        "catalog",
        "program_cache",
        "compiled_files",
    ),
    ("guarded", "references", "verification", "operands", "dlpack", "device_operands"),
    ("evaluators",),
    ("search", "store", "progress"),
    ("recorded",),
    ("device_libraries", "device_kernel", "host_kernel"),
    (
        "targets",
        "priors",
        "mpi_target",
        "mpi_machine",
        "hybrid",
        "hybrid_target",
        "local_product",
        "distributed",
        "distributed_gpu",
        "trials",
        "deciding",
        "trial_run",
        "tuner",
        "sweeper",
        "lookup",
        "runtime",
        "library",
        "preset_run",
    ),
    ("cli", "__main__"),
)

# Packages that only one layer may name, so that the rest runs without them.
CONFINED = {
    "optuna": ("search",),
    "jinja2": ("templating",),
    "numba": ("evaluators",),
    "cuda": ("evaluators",),
    "mpi4py": ("evaluators",),
    "pycuda": ("evaluators",),
}

PACKAGE = Path(autotune.__file__).parent
MODULES = sorted(
    path for path in PACKAGE.rglob("*.py") if "_data" not in path.relative_to(PACKAGE).parts
)


def dotted(path: Path) -> str:
    """The module's name below the package; "" for the package itself."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def layer(module: str) -> int:
    if not module:  # the package itself names everything, to be imported on first use
        return len(LAYERS)
    for height, names in enumerate(LAYERS):
        if module.split(".")[0] in names:
            return height
    pytest.fail(f"autotune.{module} is in no layer: add it to LAYERS where it belongs")


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """Line and absolute name of everything a module imports, wherever the statement stands."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: imports are absolute"
            assert node.module is not None
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: dotted(path) or "autotune")
def test_imports_point_downwards(path: Path) -> None:
    own = layer(dotted(path))
    for line, name in imports(path):
        package, _, rest = name.partition(".")
        if package != "autotune" or rest.startswith("__version__"):
            continue
        assert layer(rest) <= own, f"{path}:{line}: {name} is in a layer above this module's"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: dotted(path) or "autotune")
def test_heavy_packages_stay_in_their_layer(path: Path) -> None:
    top = dotted(path).split(".")[0]
    for line, name in imports(path):
        homes = CONFINED.get(name.split(".")[0])
        assert homes is None or top in homes, f"{path}:{line}: {name} belongs in {homes}"


def test_importing_autotune_is_light() -> None:
    script = f"import autotune, sys; print(*({list(CONFINED)!r} & sys.modules.keys()))"
    script = script.replace("[", "{").replace("]", "}")
    loaded = subprocess.run(
        [sys.executable, "-c", script],
        env={"PYTHONPATH": str(PACKAGE.parent)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert loaded.stdout.split() == []
