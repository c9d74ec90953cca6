"""`python -m benchmarks [topic ...] [--full]`: measure, and compare every number with its target."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks import lines, suite
from benchmarks.lines import Report
from efvfl.util.files import write_atomically

OUT = Path(__file__).parent / "results" / "bench.json"


def earlier(path: Path, machine: dict[str, str]) -> Report:
    """Return the previous report of this machine, so that single topics can be measured again."""
    if path.exists():
        found = Report.from_json(path.read_text(encoding="utf-8"))
        if found.machine == machine:
            return found
        print(f"{path} is of another machine or other versions: starting a new report.", file=sys.stderr)
    return Report(machine)


def write(report: Report, path: Path) -> None:
    """Write the report as JSON and as Markdown."""
    write_atomically(path, report.to_json().encode())
    write_atomically(path.with_suffix(".md"), report.to_markdown().encode())


def main() -> int:
    """Run the topics; return 1 if one of them failed, whether or not the targets are met."""
    names = ", ".join(topic.name for topic in suite.TOPICS)
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measure, beside targets.")
    parser.add_argument("topics", nargs="*", metavar="topic", help=f"{names}; default: all")
    parser.add_argument("--full", action="store_true", help="the long run: more rounds, more sizes, the slow line")
    parser.add_argument("--out", type=Path, default=OUT, help="the JSON; the Markdown goes beside it")
    options = parser.parse_args()
    report, failed = earlier(options.out, lines.machine_facts()), False
    for topic in suite.chosen(options.topics, options.full):
        if topic.lacks:
            print(f"{topic.name}: left out. {topic.lacks[0].upper()}{topic.lacks[1:]}", file=sys.stderr, flush=True)
            continue
        print(f"{topic.name} ...", file=sys.stderr, flush=True)
        section = suite.run(topic, options.full)
        report = report.replaced(section, [known.name for known in suite.TOPICS])
        write(report, options.out)
        failed |= any(line.error for line in section.lines)
        print(f"### {section.title}\n\n{lines.table(section.lines)}\n", flush=True)
    print(lines.facts(report.machine))
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
