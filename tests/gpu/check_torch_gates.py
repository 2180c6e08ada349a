"""Run by pytest where gates are compiled: kernels of a GPU that are launched without Python."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
import torch
from torch.nn import functional

from autotune.torch import compiled, linear, mm, switch, use_tuned

# Of libraries while they are imported.
pytestmark = [
    pytest.mark.gpu,
    *(
        pytest.mark.filterwarnings(f"ignore::{kind}")
        for kind in ("DeprecationWarning", "FutureWarning", "UserWarning")
    ),
]

CALLS = 12
"""After which it is known who computes, unless the host is slow."""

MOST = 400
"""After which it is known in any case."""

SHAPES = ((1, 4096, 1024), (16, 4096, 1024), (64, 4096, 6144), (300, 512, 768))
"""Rows, reduction and columns: some have a workspace."""


@pytest.fixture(scope="module", autouse=True)
def taken(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Any]]:
    """Launches that the gates were told of; products are served as they come to be known."""
    told: list[Any] = []
    take = compiled.CompiledGates.take

    def noting(gates: Any, call: Any, launch: Any, **how: bool) -> None:
        told.append(launch)
        take(gates, call, launch, **how)

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AUTOTUNE_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("AUTOTUNE_BACKGROUND", "0")
        patch.setattr(compiled.CompiledGates, "take", noting)
        yield told


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Operations that Python was asked of."""
    found: list[str] = []
    for name in ("product", "sum", "stack"):

        def asking(self: Any, *given: Any, name: str = name, **how: Any) -> Any:
            found.append(name)
            return USUAL[name](self, *given, **how)

        monkeypatch.setattr(switch._Served, name, asking)
    return found


USUAL = {name: getattr(switch._Served, name) for name in ("product", "sum", "stack")}


def normal(*shape: int, dtype: Any = torch.bfloat16) -> Any:
    source = torch.Generator("cuda").manual_seed(sum(shape))
    return torch.randn(shape, generator=source, device="cuda").to(dtype)


def layers(dtype: Any) -> dict[str, tuple[Callable[[], Any], Any]]:
    """Products, and what they are."""
    found = {}
    for m, n, k in SHAPES:
        x, weight, bias = normal(m, n, dtype=dtype), normal(k, n, dtype=dtype), normal(k)
        bias = bias.to(dtype)
        wanted = x.double() @ weight.double().t()
        found[f"{m} rows"] = (lambda x=x, w=weight: functional.linear(x, w)), wanted
        found[f"{m} rows, bias"] = (
            (lambda x=x, w=weight, b=bias: functional.linear(x, w, b)),
            wanted + bias.double(),
        )
    q, k = normal(8, 128, 64, dtype=dtype), normal(8, 128, 64, dtype=dtype)
    found["stack"] = (lambda: torch.bmm(q, k.mT)), q.double() @ k.double().mT
    return found


def close(got: Any, wanted: Any) -> None:
    off = (got.double() - wanted).abs().max() / wanted.abs().max()
    assert off < (1e-2 if got.dtype.itemsize == 2 else 1e-5)


def call_until_known(calls: Mapping[str, tuple[Callable[[], Any], Any]], asked: list[str]) -> None:
    """Make calls until Python is asked of none: what becomes known of one has all asked again."""
    for _ in range(MOST):
        asked.clear()
        for call, wanted in calls.values():
            close(call(), wanted)
        if not asked:
            break
    assert asked == []


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_python_is_asked_no_more(dtype: Any, asked: list[str], taken: list[Any]) -> None:
    with use_tuned():
        call_until_known(layers(dtype), asked)
    if dtype is torch.bfloat16:
        assert any(launch.workspace_bytes for launch in taken)
        assert any(launch.maps for launch in taken)


def test_streams_graphs_and_threads() -> None:
    known = layers(torch.bfloat16)
    wrong: list[BaseException] = []

    def work() -> None:
        try:
            with torch.cuda.stream(torch.cuda.Stream()):
                for _ in range(20):
                    for call, wanted in known.values():
                        close(call(), wanted)
        except BaseException as error:
            wrong.append(error)

    with use_tuned():
        for call, _ in known.values():
            for _ in range(CALLS):
                call()
        threads = [threading.Thread(target=work) for _ in range(4)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        assert not wrong, wrong[0]
        for call, wanted in known.values():
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                made = call()
            for _ in range(3):
                made.zero_()
                graph.replay()
                close(made, wanted)


def test_operators(asked: list[str]) -> None:
    m, n, k = SHAPES[1]
    x, weight, bias = normal(m, n), normal(k, n), normal(k)
    wanted = x.double() @ weight.double().t()
    calls: dict[str, tuple[Callable[[], Any], Any]] = {
        "mm": (lambda: mm(x, weight.t()), wanted),
        "linear": (lambda: linear(x, weight), wanted),
        "bias": (lambda: linear(x, weight, bias), wanted + bias.double()),
        "operator": (lambda: torch.ops.autotune.mm(x, weight.t()), wanted),
    }
    call_until_known(calls, asked)


def test_operands_that_a_kernel_cannot_take() -> None:
    m, n, k = SHAPES[1]
    weight = normal(k, n)
    odd = normal(m * n + 1)[1:].view(m, n)
    with use_tuned():
        for _ in range(CALLS):
            functional.linear(normal(m, n), weight)
        close(functional.linear(odd, weight), odd.double() @ weight.double().t())


@pytest.mark.skipif("torch.cuda.device_count() < 2", reason="there is one GPU")
def test_several_gpus() -> None:
    m, n, k = SHAPES[1]
    with use_tuned():
        for device in range(torch.cuda.device_count()):
            x, weight = (normal(*sizes).to(f"cuda:{device}") for sizes in ((m, n), (k, n)))
            wanted = x.double() @ weight.double().t()
            for _ in range(CALLS):
                close(functional.linear(x, weight), wanted)
