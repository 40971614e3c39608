"""Figure pages with a table of Apache's and DueMQ's values."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks import page, run
from benchmarks.page import Found, Goal, figures, number

REFERENCE = Path(__file__).parents[1] / "docs" / "reference"


@dataclass(frozen=True, slots=True)
class ComparisonPage:
    """Page in docs/reference.

    Attributes:
        path: File of the page.
        loads: Names of the loads that the page shows.
        goals: Goals in the order of the page.
        introduction: Text before the figures, for a page that does not exist yet.
    """

    path: Path
    loads: Sequence[str]
    goals: Sequence[Goal]
    introduction: str = ""

    def main(self, program: str, words: Sequence[str]) -> int:
        """Measure, except with --fill-only, and write the page; return 1 if a load failed."""
        parser = argparse.ArgumentParser(prog=program)
        parser.add_argument("--fill-only", action="store_true", help="use the newest figures")
        parser.add_argument("--scale", default="1.0", help="multiplies counts of messages")
        args = parser.parse_args(words)
        options = ["--only", ",".join(self.loads), "--scale", args.scale]
        failed = 0 if args.fill_only else run.main(options)
        is_new = not self.path.exists()
        text = self.introduction + page.EMPTY if is_new else self.path.read_text()
        self.path.write_text(self.filled(text, page.newest(set(self.loads))))
        print(f"written: {self.path}")
        return failed

    def filled(self, text: str, name: str) -> str:
        """Return the page with the figures of a file in benchmarks/results between its markers."""
        results = page.read(name)
        goals = page.goals_table(results, self.goals)
        return page.replaced(
            text, [page.about(name, results, self.loads), goals, self._comparison(results)]
        )

    def _comparison(self, results: Found) -> str:
        rows = ["| load | figure | Apache 5.3.3 | DueMQ |", "|---|---|---|---|"]
        for load in self.loads:
            theirs, ours = (figures(results, load, server) for server in (run.APACHE, run.OURS))
            title = f"`{load}`"
            for name, (_, unit) in (theirs | ours).items():
                cells = [
                    f"{number(values[name][0])} {unit}" if name in values else "-"
                    for values in (theirs, ours)
                ]
                rows.append(f"| {title} | {name} | {' | '.join(cells)} |")
                title = ""
        return "\n".join(rows)
