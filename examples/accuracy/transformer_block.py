"""A transformer block in float32 on tensor cores, as exact as on CUDA cores.

Prints how long a block takes and how far it is off one in float64: by PyTorch's own products and
with `use_tuned(accuracy="fp32-normwise")`, and the same where PyTorch rounds to TF32, with
`use_tuned(accuracy="tf32")`.

    python examples/accuracy/transformer_block.py --tokens 2048
"""

import argparse
import contextlib
import copy
import functools
import time

import torch
from torch import nn
from torch.nn import functional

from autotune.torch import use_tuned

ROUNDS = 20


class Block(nn.Module):
    """Attention and a gated network of four times the width, both after a norm of their own."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_network = nn.RMSNorm(width), nn.RMSNorm(width)
        self.attended = nn.Linear(width, 3 * width, bias=False)
        self.gathered = nn.Linear(width, width, bias=False)
        self.gate = nn.Linear(width, 4 * width, bias=False)
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)
        for weight in self.parameters():
            if weight.dim() == 2:
                nn.init.normal_(weight, std=weight.shape[1] ** -0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The block's output, tokens x width as its input."""
        parts = self.attended(self.before_attention(x)).chunk(3, dim=-1)
        queries, keys, values = (p.unflatten(-1, (self.heads, -1)).transpose(0, 1) for p in parts)
        seen = functional.scaled_dot_product_attention(queries, keys, values, is_causal=True)
        x = x + self.gathered(seen.transpose(0, 1).flatten(1))
        normed = self.before_network(x)
        return x + self.down(functional.silu(self.gate(normed)) * self.up(normed))


@contextlib.contextmanager
def rounding(way):
    """A context within another one in which PyTorch rounds operands of products to TF32."""
    torch.set_float32_matmul_precision("high")
    try:
        with way:
            yield
    finally:
        torch.set_float32_matmul_precision("highest")


@torch.no_grad()
def measure(block, x, exact, seconds):
    """Milliseconds of a call, and the error's norm relative to the exact result's."""
    wait = torch.cuda.synchronize if x.is_cuda else lambda: None
    begin = time.perf_counter()
    while True:  # kernels are compiled, and take turns with the library, in the first calls
        y = block(x)
        wait()
        if time.perf_counter() - begin > seconds:
            break
    begin = time.perf_counter()
    for _ in range(ROUNDS):
        y = block(x)
    wait()
    milliseconds = (time.perf_counter() - begin) / ROUNDS * 1e3
    return milliseconds, float((y.double() - exact).norm() / exact.norm())


def main() -> None:
    """Measure all ways and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", default=device)
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--width", type=int, default=4096)
    parser.add_argument("--heads", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=30, help="of calls that are not timed")
    said = parser.parse_args()

    torch.manual_seed(0)
    block = Block(said.width, said.heads).to(said.device)
    x = torch.randn(said.tokens, said.width, device=said.device)
    with torch.no_grad():
        exact = copy.deepcopy(block).double()(x.double())
    tuned = functools.partial(use_tuned, devices=[said.device])
    ways = {
        "float32": (contextlib.nullcontext(), 0.5),
        "fp32-normwise": (tuned(accuracy="fp32-normwise"), said.seconds),
        "TF32": (rounding(contextlib.nullcontext()), 0.5),
        "tf32": (rounding(tuned(accuracy="tf32")), said.seconds),
    }
    print(f"{said.tokens} tokens of {said.width} on {said.device}")
    print(f"{'products':<14} {'ms':>8} {'speed':>6} {'error':>9}")
    usual = None
    for name, (way, seconds) in ways.items():
        with way:
            milliseconds, error = measure(block, x, exact, seconds)
        usual = usual or milliseconds
        print(f"{name:<14} {milliseconds:8.2f} {usual / milliseconds:6.2f} {error:9.1e}")


if __name__ == "__main__":
    main()
