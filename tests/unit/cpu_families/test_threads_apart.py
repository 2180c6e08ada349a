"""Threads leave their caller's processor, where emitted code says so, and no more than that."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from autotune.cpu.identity import read_cpu
from autotune.families.program_cache import ProgramCache
from autotune.families.rendering import render
from autotune.operations.problem import Gemm
from autotune.targets.families import load_families

SCRIPT = """
import importlib.util, os, sys, threading

spec = importlib.util.spec_from_file_location("emitted", sys.argv[1])
emitted = importlib.util.module_from_spec(spec)
sys.modules["emitted"] = emitted
spec.loader.exec_module(emitted)
keep_apart, this_processor = emitted.keep_apart, emitted.this_processor

@emitted.njit
def called_here():
    keep_apart(0, this_processor())  # no thread is number 0: somebody else called

every = os.sched_getaffinity(0)
said = []

def in_thread():
    os.sched_setaffinity(0, every)
    called_here()
    said.append(len(os.sched_getaffinity(0)) - len(every))

def run():
    thread = threading.Thread(target=in_thread)
    thread.start()
    thread.join()

run()
os.sched_setaffinity(0, {min(every)})  # of the first thread, whose processors the others are told
run()
print(said)
"""


@pytest.mark.skipif(
    not hasattr(os, "sched_getaffinity") or len(os.sched_getaffinity(0)) < 2,
    reason="needs two processors",
)
def test_a_thread_leaves_one_processor_of_those_that_all_may_use(tmp_path: Path) -> None:
    family = load_families(target="cpu")["unpacked"]
    limits = read_cpu().limits
    configuration = family.default(Gemm(512, 512, 512), limits)
    source = render(family, {**configuration, "threads": 2}, dtype="float32")
    path = ProgramCache(tmp_path).write(source, family.name)
    finished = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=250,
    )
    assert finished.stdout == "[-1, 0]\n", finished.stderr
