"""Screenshots of an audit report for docs/how-to/audit.md.

    python -m benchmarks.audit_figures      writes docs/figures/audit-report.png and -due.png

The program fills a store with one simulated day of two topics: levels and timers, a pause of
deliveries of two minutes, a level migrated to timers, and timers that are due in the next days. It
then runs `duemq reconcile` on the store. It needs Java and Chromium.
"""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from message_store.log.batch import PutBatch
from tests.support.migration_rig import MigrationRig
from tests.support.stores import add_message

FIGURES = Path(__file__).parents[1] / "docs" / "figures"
CHROMIUM = ("chromium", "chromium-browser", "google-chrome")
DAY_MS, MINUTE_MS = 86_400_000, 60_000
WIDTH, HEIGHT = 1_060, 2_830
PARTS = {"audit-report": (0, 2_088), "audit-report-due": (2_092, HEIGHT)}
"""Top and bottom of each screenshot on the page, in pixels."""
COLOURS_MAX = 128


def main() -> int:
    """Fill a store, audit it, and take the screenshots."""
    with tempfile.TemporaryDirectory(prefix="audit-figures-") as folder:
        home = Path(folder)
        fill(home / "store")
        page = home / "report.html"
        words = ["reconcile", "run", str(home / "store"), "--report", str(page), "--ledger", "none"]
        subprocess.run([sys.executable, "-m", "duemq", *words], check=False)
        text = page.read_text().replace(str(home / "store"), "/data/store")
        page.write_text(text)
        cut(picture(page, home / "page.png"))
    return 0


def fill(root: Path) -> None:
    """Write one day of messages, and timers that are due within three more days."""
    chance = random.Random(7)
    rig = MigrationRig(root, log_file_bytes=52 * 10_000)
    rig.topics = ["T", "U"]
    rig.open()
    for minute in range(24 * 60 // 5):
        busy = 4 + int(8 * abs(((minute * 5 / 60) % 24) - 12) / 12)
        rig.send([(chance.choice((3, 4, 5)), chance.choice("TU"), 0, b"x") for _ in range(busy)])
        timers(rig, chance, 2)
        if minute == 150:  # no delivery for two minutes
            rig.clock.advance(2 * MINUTE_MS)
        if minute == 200:
            rig.drain.step(5, 1_000, migration="run-20261121-163000-1f2e")
        rig.advance(5 * MINUTE_MS)
    rig.close()


def timers(rig: Any, chance: random.Random, count: int) -> None:
    """Put timers that are due in the next hours and days."""
    batch = PutBatch(count)
    for _ in range(count):
        due_ms = rig.clock.now_ms() + int(chance.triangular(MINUTE_MS, 3 * DAY_MS, 3_600_000))
        text = {"TIMER_DELIVER_MS": str(due_ms), "UNIQ_KEY": f"{chance.getrandbits(128):032X}"}
        add_message(rig.store, batch, chance.choice("TU"), 0, b"x", properties=text)
    rig.put(batch)


def picture(page: Path, target: Path) -> Path:
    """Take a screenshot of a page with Chromium, without network access."""
    program = next(filter(None, map(shutil.which, CHROMIUM)), None)
    if program is None:
        raise SystemExit("no Chromium is installed")
    words = [
        program,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--hide-scrollbars",
        "--disable-dev-shm-usage",
        f"--user-data-dir={page.parent / 'profile'}",
        f"--window-size={WIDTH},{HEIGHT}",
        f"--screenshot={target}",
        page.as_uri(),
    ]
    subprocess.run(words, check=True, stderr=subprocess.DEVNULL)
    return target


def cut(whole: Path) -> None:
    """Crop a screenshot into the figures of the docs, and reduce their colours."""
    from PIL import Image

    for name, (top, bottom) in PARTS.items():
        part = Image.open(whole).convert("RGB").crop((0, top, WIDTH, bottom))
        part.quantize(COLOURS_MAX).save(FIGURES / f"{name}.png", optimize=True)


if __name__ == "__main__":
    raise SystemExit(main())
