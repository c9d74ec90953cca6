"""Fuzzes for a stated time, over several processes, and keeps what it finds.

    python tests/support/fuzz.py --seconds 300

Prints how many inputs each fuzzer has tried. A finding is shrunk by hypothesis and kept in `tests/fuzz/corpus`, from
where ordinary tests try it again for ever; the exit code is then 1.
"""

from __future__ import annotations

import argparse
import hashlib
import logging
import multiprocessing
import os
import random
import sys
import time
import traceback
import warnings
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fuzzers import Fuzzer

CORPUS = Path(__file__).resolve().parent.parent / "fuzz" / "corpus"
ROUND = 2.0  # seconds of one fuzzer until it is the next one's turn
AT_ONCE = 100  # draws between two looks at the clock
MEMORY = 6 << 30  # bytes of address space of one process: more is a finding too


def found(name: str, corpus: Path = CORPUS) -> list[Path]:
    """Return the inputs of a fuzzer that were kept."""
    return sorted(path for path in (corpus / name).glob("*") if path.is_file())


def keep(name: str, data: bytes, corpus: Path = CORPUS) -> Path:
    """Keep an input of a fuzzer."""
    path = corpus / name / hashlib.sha256(data).hexdigest()[:12]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def run_round(fuzzer: Fuzzer, seed: int, seconds: float) -> tuple[int, bytes | None, str]:
    """Try inputs for some seconds; return how many, and what was found: the input and the error."""
    from hypothesis import HealthCheck, Phase, given, settings
    from hypothesis import seed as seeded

    tried, last, end = 0, b"", time.monotonic() + seconds
    phases = (Phase.generate, Phase.shrink)

    @settings(
        deadline=None, database=None, max_examples=AT_ONCE, phases=phases, suppress_health_check=list(HealthCheck)
    )
    @given(fuzzer.inputs())
    def attempt(batch: list[bytes]) -> None:
        nonlocal tried, last
        for data in batch:
            tried, last = tried + 1, data
            fuzzer.attempt(data)

    while time.monotonic() < end:
        try:
            seeded(seed + tried)(attempt)()
        except Exception:  # whatever it is: nothing but declared errors was expected
            return tried, last, traceback.format_exc()
    return tried, None, ""


def work(number: int, workers: int, seconds: float, names: list[str]) -> tuple[Counter[str], dict[str, str]]:
    """Run every fuzzer in turn until the time is over; each process begins with another one."""
    import resource

    import torch
    from fuzzers import FUZZERS

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.disable()  # what a participant would log of such inputs
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    tried: Counter[str] = Counter()
    texts: dict[str, str] = {}  # by what was kept: the same is often found again
    end = time.monotonic() + seconds
    chosen = [fuzzer for fuzzer in FUZZERS if not names or fuzzer.name in names]
    turn = number * len(chosen) // workers
    while time.monotonic() < end:
        fuzzer = chosen[turn % len(chosen)]
        count, data, text = run_round(fuzzer, random.SystemRandom().getrandbits(40), min(ROUND, seconds))
        tried[fuzzer.name] += count
        turn += 1
        if data is not None:
            texts[str(keep(fuzzer.name, data))] = text
    return tried, texts


def main() -> int:
    """Run the fuzzers and print what they tried."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("names", nargs="*", help="of fuzzers (default: all)")
    options = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    with context.Pool(options.workers) as pool:
        shares = [(i, options.workers, options.seconds, options.names) for i in range(options.workers)]
        done = pool.starmap_async(work, shares).get(timeout=2 * options.seconds + 600)
    tried: Counter[str] = sum((counts for counts, _ in done), Counter())
    findings = {path: text for _, texts in done for path, text in texts.items()}
    for name, count in sorted(tried.items()):
        print(f"{name:20} {count:12,}")
    print(f"{'inputs':20} {tried.total():12,}\n{'findings':20} {len(findings):12,}")
    for path, text in findings.items():
        print(f"{path}:\n{text}", file=sys.stderr)
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
