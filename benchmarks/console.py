"""The console with many pending timers: response times of pages, and bulk decisions.

    python -m benchmarks.console [pending] [cancelled]
    python -m benchmarks.console lateness [pending] [cancelled] [rounds] [seconds]
    python -m benchmarks.console resend [letters]
    python -m benchmarks.console many [topics] [groups]

The second command measures the lateness of deliveries without and with use of the console, see
`benchmarks/console_lateness.py`; the third one a bulk resend of dead letters; the fourth one
each view with many topics and groups.

The library fills the store. The broker runs in a process of its own with the console in it;
requests come from this process. Each page is requested several times, and the best time counts.
"""

from __future__ import annotations

import re
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from urllib.parse import quote

import httpx

from benchmarks import console_lateness, console_many, console_resend
from benchmarks.fill import fill_store
from tests.support.accounts import KEYS, ROOT
from tests.support.child_process import Child
from tests.support.duemq_server import DueMQ
from tests.support.free_ports import free_ports, listening
from tests.support.wait_until import until

TOPIC = "bench"
HOUR_MS = 3_600_000
FIRST_HOUR, LAST_HOUR = 1, 47  # due times of the filler
ROUNDS = 5
POLL_S = 0.2
TIMEOUT_S, READY_S = 300.0, 60.0


def csrf_of(text: str) -> str:
    """Return the text that the forms of a page send."""
    match = re.search(r'name="csrf" value="([^"]+)"', text)
    assert match is not None, text
    return match.group(1)


def timed(name: str, work: Callable[[], httpx.Response], rounds: int = ROUNDS) -> httpx.Response:
    """Print the best and the longest time of a request; return its last response."""
    times: list[float] = []
    for _ in range(rounds):
        begin = time.perf_counter()
        response = work()
        times.append(time.perf_counter() - begin)
    assert response.status_code == 200, response.text
    print(f"{name:44s} best {min(times) * 1e3:8.0f} ms   longest {max(times) * 1e3:8.0f} ms")
    return response


def measure_pages(client: httpx.Client) -> None:
    """Measure the pages whose time may depend on the number of pending timers."""
    now_ms = int(time.time() * 1_000)
    hour_10, hour_11 = now_ms + 10 * HOUR_MS, now_ms + 11 * HOUR_MS
    timed("login to first page", lambda: client.get("/"), 1)
    for span in ("10min", "1h", "1d", "1y"):
        timed(f"overview, {span}", partial(client.get, "/", params={"span": span}))
    timed("timers", lambda: client.get("/timers"))
    timed("timers, topic", lambda: client.get("/timers", params={"topic": TOPIC}))
    timed("timers, other topic", lambda: client.get("/timers", params={"topic": "other"}))
    page = timed(
        "timers, range of an hour",
        lambda: client.get("/timers", params={"from": hour_10, "until": hour_11}),
    )
    match = re.search(r"/console/messages/([^\"]+)", page.text)
    assert match is not None
    name = match.group(1)
    timed("timers, id", lambda: client.get("/timers", params={"key": name}))
    timed("message", lambda: client.get(f"/messages/{quote(name)}"))
    timed("bulk decisions", lambda: client.get("/bulk"))


def wait_for(client: httpx.Client, page: httpx.Response) -> tuple[httpx.Response, float, int]:
    """Return the page of a job that has ended, the seconds, and the number of progress values."""
    begin, seen = time.perf_counter(), set()
    path = page.url.path.removeprefix("/console")
    while "sse-connect" in page.text:
        seen |= set(re.findall(r'<progress value="(\d+)"', page.text))
        time.sleep(POLL_S)
        page = client.get(path)
    return page, time.perf_counter() - begin, len(seen)


def decide(client: httpx.Client, broker: Child, search: dict[str, str]) -> dict[str, float]:
    """List the hits of a search, and decide on all of them.

    Returns:
        Number of messages, and the seconds of the list and of the decision.
    """
    form = {"csrf": csrf_of(client.get("/").text)}
    start_s = broker.cpu_seconds()
    page, list_s, _ = wait_for(client, client.post("/bulk", data=form | search))
    match = re.search(r'name="count"', page.text)
    total = re.search(r"<dt>Messages</dt><dd>([\d,]+)", page.text)
    assert total is not None, page.text
    count = int(total.group(1).replace(",", ""))
    listed_s = broker.cpu_seconds()
    print(f"listed {count:,} in {list_s:.1f} s, {count / list_s / 1e3:.1f} k/s")
    print(f"    processor time of the broker: {listed_s - start_s:.1f} s")
    path, decide_s = page.url.path.removeprefix("/console"), 0.0
    if match is not None:
        start = {**form, "do": "start", "count": str(count)}
        page, decide_s, steps = wait_for(client, client.post(path, data=start))
        rate = count / decide_s / 1e3
        action = search["action"]
        print(f"{action} of {count:,} in {decide_s:.1f} s, {rate:.1f} k/s, {steps} progress values")
        print(f"    processor time of the broker: {broker.cpu_seconds() - listed_s:.1f} s")
    for verdict, number in re.findall(r'\?verdict=(\w+)".*?<td class="number">([\d,]+)', page.text):
        print(f"    {verdict}: {number}")
    client.post(path, data={**form, "do": "discard"})
    return {"messages": count, "list_s": round(list_s, 1), "decision_s": round(decide_s, 1)}


def main(pending: int, cancelled: int) -> None:
    """Fill a store, start the broker, and measure."""
    [port] = free_ports(1)
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        begin = time.perf_counter()
        fill_store(root / "store", pending, TOPIC)
        print(f"{pending:,} timers filled in {time.perf_counter() - begin:.0f} s")
        with DueMQ(root, keys=KEYS | {"consolePort": str(port)}) as server:
            until(lambda: listening(port), seconds=READY_S, what="the console")
            base = f"http://127.0.0.1:{port}/console"
            with httpx.Client(base_url=base, timeout=TIMEOUT_S, follow_redirects=True) as client:
                account = {"access_key": ROOT.access_key, "secret": ROOT.secret}
                assert client.post("/login", data=account).status_code == 200
                measure_pages(client)
                hours = (LAST_HOUR - FIRST_HOUR) * cancelled / pending
                until_ms = int(time.time() * 1_000 + (FIRST_HOUR + hours) * HOUR_MS)
                search = {"action": "cancel", "topic": TOPIC, "until": str(until_ms)}
                decide(client, server.broker, search)
                memory = server.broker.memory_bytes()["anonymous"] / (1 << 20)
                print(f"anonymous memory of the broker: {memory:.0f} MiB")


def numbers_of(words: list[str], default: str) -> list[int]:
    """Return arguments as numbers."""
    return [int(word.replace("_", "")) for word in words or default.split()]


if __name__ == "__main__":
    if sys.argv[1:2] == ["lateness"]:
        console_lateness.main(decide, *numbers_of(sys.argv[2:], ""))
    elif sys.argv[1:2] == ["resend"]:
        console_resend.main(decide, numbers_of(sys.argv[2:], ""))
    elif sys.argv[1:2] == ["many"]:
        console_many.main(*numbers_of(sys.argv[2:], ""))
    else:
        main(*numbers_of(sys.argv[1:], "1_000_000 500_000"))
