"""Carry shipped programs over an edit of family files that leaves their machine code as it is.

A record or portfolio of ``cache/`` holds for a family's files as they were when it was measured:
an edit of a comment makes it stale. From the root of a checkout with the edit::

    git worktree add ../before COMMIT
    python benchmarks/carry_over.py ../before

renders every stale program in both checkouts and compares them: Python by its syntax tree, CUDA
C++ by the instructions that this machine's NVRTC makes of it, as nvdisasm of CUDA lists them.
Equal programs get the digest of today's files. Others are named and left stale; ``--replace`` puts
today's binary in the place of theirs: what was measured of the old one stays. Of a parameter that
is new, programs have the default.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import lzma
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from autotune.families.gpu.launch import architecture_of, kernel_layout
from autotune.families.rendering import render
from autotune.store import TuningRecord
from autotune.store.portfolio import digest_of
from autotune.targets.families import load_families

Document = dict[str, Any]


class Program(NamedTuple):
    """A program as a checkout has it: its family's digest, its parameters and its source."""

    digest: str
    configuration: dict[str, Any]
    text: str


class Compared(NamedTuple):
    """Two versions of a program: whether they are the same, and the binary of the later one."""

    same: bool
    binary: bytes


def programs(document: Document) -> Iterator[tuple[Document, str]]:
    """The programs of a line of a shipped file, and what each one's source follows from."""
    shared = document.get("problem", document)
    for part in document.get("entries", [document] if "problem" in document else []):
        layout = part.get("layout") or shared["layout"]
        names = (document["target"], part["family"], shared["dtype"], shared["out_dtype"], layout)
        yield part, json.dumps([*names, part["configuration"]])


def describe(keys: list[str]) -> dict[str, Program]:
    """Every program as this checkout has it."""
    found = {}
    for key in keys:
        target, name, dtype, out_dtype, layout, configuration = json.loads(key)
        family = load_families(target=target, operation="gemm")[name]
        layout = kernel_layout(family, layout)
        types = {"dtype": dtype, "out_dtype": out_dtype, "layout": layout}
        own = {each.name: configuration.get(each.name, each.default) for each in family.parameters}
        text = render(family, family.conform(own), **types).text
        found[key] = Program(family.digest, own, text)
    return found


def described_by(checkout: Path, keys: list[str]) -> dict[str, Program]:
    """`describe`, by the code of another checkout."""
    answer = subprocess.run(
        [sys.executable, str(Path(__file__).resolve()), "--describe", "."],
        cwd=checkout,
        env={**os.environ, "PYTHONPATH": str(checkout.resolve())},
        input=json.dumps(keys),
        capture_output=True,
        text=True,
        check=True,
    )
    return {key: Program(*described) for key, described in json.loads(answer.stdout).items()}


def statements(text: str) -> str:
    """A Python source without comments and docstrings."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.FunctionDef | ast.ClassDef):
            node.body = node.body[ast.get_docstring(node) is not None :]
    return ast.dump(tree)


def instructions(cubin: bytes) -> list[str]:
    """The instructions of a binary's kernels."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = ["nvdisasm", "-c", file.name]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return [line for line in text.splitlines() if not line.startswith("//")]


def compare(key: str, before: str, now: str) -> Compared:
    """Compare two versions of a program's source."""
    target, name, *_ = json.loads(key)
    if target == "cpu":
        return Compared(statements(before) == statements(now), b"")
    if before.partition("*/")[2] == now.partition("*/")[2]:
        return Compared(True, b"")  # but for the opening comment
    from autotune.gpu.nvidia.nvrtc import compile_cuda

    architecture = architecture_of(load_families(target=target, operation="gemm")[name], "sm_90")
    old, new = (compile_cuda(text, architecture).cubin for text in (before, now))
    return Compared(instructions(old) == instructions(new), new)


def rewrite(
    file: Path,
    before: dict[str, Program],
    now: dict[str, Program],
    compared: dict[str, Compared],
) -> None:
    """Write a shipped file anew."""
    lines = []
    for line in file.read_text(encoding="utf-8").splitlines():
        document = json.loads(line)
        for part, key in programs(document):
            if key not in compared or part["family_digest"] != before[key].digest:
                continue
            part.update(family_digest=now[key].digest, configuration=now[key].configuration)
            if not compared[key].same:
                digest = hashlib.sha256(compared[key].binary).hexdigest()
                content = lzma.compress(compared[key].binary)
                file.with_name(f"{digest}.cubin.xz").write_bytes(content)
                binary = part["binary"]
                part["binary"] = (
                    digest if isinstance(binary, str) else {**binary, "digest": digest}
                )
            if part.pop("id", None):
                part["id"] = TuningRecord.from_json(part).id  # that of the content
        if "digest" in document:
            document["digest"] = digest_of(document)
        lines.append(json.dumps(document, allow_nan=False))
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")


def main() -> None:
    """Compare what is stale, and rewrite the files that name it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("before", type=Path, help="a checkout from before the edit")
    parser.add_argument("--cache", type=Path, default=Path("cache"))
    parser.add_argument("--replace", action="store_true", help="take today's binaries, too")
    parser.add_argument("--describe", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.describe:
        print(json.dumps(describe(json.load(sys.stdin))))
        return
    files = sorted(args.cache.glob("*/*.jsonl"))
    lines = [line for file in files for line in file.read_text(encoding="utf-8").splitlines()]
    found = [pair for line in lines for pair in programs(json.loads(line))]
    now = describe([key for _, key in found])
    stale = [(part, key) for part, key in found if part["family_digest"] != now[key].digest]
    before = described_by(args.before, sorted({key for _, key in stale}))
    keys = sorted({key for part, key in stale if part["family_digest"] == before[key].digest})
    with ProcessPoolExecutor() as pool:
        texts = [[described[key].text for key in keys] for described in (before, now)]
        compared = dict(zip(keys, pool.map(compare, keys, *texts), strict=True))
    for key, outcome in compared.items():
        if not outcome.same:
            print("another program now:", key)
    keep = {key: o for key, o in compared.items() if o.same or (args.replace and o.binary)}
    for file in files:
        rewrite(file, before, now, keep)
        text = file.with_name("gemm.jsonl"), file.with_name("gemm.portfolio.jsonl")
        used = "".join(path.read_text(encoding="utf-8") for path in text if path.exists())
        for binary in file.parent.glob("*.cubin.xz"):
            if binary.name.partition(".")[0] not in used:
                binary.unlink()
    print(f"{len(keep)} of {len(before)} stale programs hold again", end="")
    print(f"; {len(before) - len(keys)} are of neither checkout" * (len(keys) < len(before)))


if __name__ == "__main__":
    main()
