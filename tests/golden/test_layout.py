"""Emitted CUDA C++ is indented and spaced as clang-format has it (`.clang-format` beside this)."""

from __future__ import annotations

import difflib
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest
from operation_examples import LARGE
from test_golden import emitted

from autotune.families.rendering import render
from autotune.targets.families import load_families

CLANG_FORMAT = Path(sys.executable).with_name("clang-format")
FAMILIES = load_families(target="cuda", operation="gemm")

pytestmark = pytest.mark.skipif(not CLANG_FORMAT.exists(), reason="clang-format is not installed")


def check_layouts(texts: Iterable[str], folder: Path) -> None:
    """Where lines are broken is the template's to say: some end in text that it does not know."""
    files = {folder / f"{number}.cu": text for number, text in enumerate(texts)}
    for file, text in files.items():
        file.write_text(text)
    subprocess.run([CLANG_FORMAT, "-i", f"--style=file:{STYLE}", *files], check=True)
    for file, text in files.items():
        check_layout(text, file.read_text())


def check_layout(text: str, formatted: str) -> None:
    before, after = text.splitlines(), formatted.splitlines()
    for kind, a, b, c, d in difflib.SequenceMatcher(None, before, after).get_opcodes():
        ours, theirs = before[a:b], after[c:d]
        joined = " ".join(map(str.strip, ours)) == " ".join(map(str.strip, theirs))
        rebroken = len(ours) != len(theirs) and joined and all(ours)
        assert kind == "equal" or rebroken, f"line {a + 1}: {ours} should be {theirs}"


STYLE = Path(__file__).with_name(".clang-format")


@pytest.mark.parametrize("name", FAMILIES)
def test_sources_of_a_family(name: str, tmp_path: Path) -> None:
    family = FAMILIES[name]
    presets = [{}, *(preset.configuration for preset in family.presets.values())]
    declared = {each.name: each.default for each in family.parameters if each.default is not None}
    texts = []
    for number, preset in enumerate(presets):
        dtype = family.dtypes[number % len(family.dtypes)]
        layout = family.layouts[number % len(family.layouts)]
        out_dtype = family.results(dtype)[number % len(family.results(dtype))]
        configuration = family.conform({**declared, **preset})
        source = render(family, configuration, dtype=dtype, layout=layout, out_dtype=out_dtype)
        texts.append(source.text)
    check_layouts(dict.fromkeys(texts), tmp_path)


@pytest.mark.parametrize("name", LARGE)
def test_sources_of_examples(name: str, tmp_path: Path) -> None:
    text = emitted(f"{name}.cu", tmp_path)
    check_layouts([text], tmp_path)
