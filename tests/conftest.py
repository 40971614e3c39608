"""Options of the test run and the Hypothesis profiles.

Examples have no deadline because kernels compile at their first call, and their generation has no
time limit because other processes use the machine.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import tomllib
from collections.abc import Generator
from datetime import UTC, datetime
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from delayed_delivery.plugin import ENTRY_POINT_GROUP
from tests.support.browser import axe as axe
from tests.support.browser import browser as browser
from tests.support.browser import chromium as chromium
from tests.support.extended import EXAMPLES, mark_unsampled
from tests.support.fork_server import use_forks
from tests.support.left_threads import check_threads
from tests.support.mapped_arrays import map_large_arrays
from tests.support.memory_files import use_memory
from tests.support.patient_clients import use_patience
from tests.support.run_order import make_scheduler, ordered

# Apache's processes live for seconds here: no time for the second compiler.
os.environ.setdefault("APACHE_PEER_JVM", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
os.environ.setdefault("APACHE_PEER_PATIENT", "1")
os.environ.setdefault("APACHE_PEER_ARCHIVES", "1")
os.environ.setdefault("DUEMQ_CLASS_ARCHIVE", "off")  # no background process of a test
use_patience()
map_large_arrays()
use_memory()
use_forks()
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as for a job in the background of a script
    signal.signal(signal.SIGINT, signal.default_int_handler)  # tests interrupt commands
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # a broker starts in 1.5 s of work instead of 5
UNTIMED = {
    "deadline": None,
    "suppress_health_check": [HealthCheck.too_slow],
    "max_examples": EXAMPLES,
}
settings.register_profile("duemq", **UNTIMED)
settings.register_profile("duemq-ci", **UNTIMED, database=None)  # examples by the seed of the day
settings.load_profile("duemq-ci" if os.environ.get("TESTS_REQUIRE_ALL") else "duemq")


RUST_TESTS = "tests/interop/test_rust_client.py"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out tests that are not requested, and put all others into order."""
    day, days = int(config.getoption("--seed")), int(config.getoption("--days"))
    mark_unsampled(items, day)
    extended = [item for item in items if item.get_closest_marker("extended")]
    left_out = set(extended) - set(extended[day % days :: days])
    if not config.getoption("--rust-client"):
        left_out |= {item for item in items if item.nodeid.startswith(RUST_TESTS)}
    config.hook.pytest_deselected(items=list(left_out))
    items[:] = [item for item in items if item not in left_out]
    places = {nodeid: rank for rank, nodeid in enumerate(ordered([i.nodeid for i in items]))}
    items.sort(key=lambda item: places[item.nodeid])


@pytest.hookimpl(tryfirst=True)  # before Hypothesis reads its seed
def pytest_configure(config: pytest.Config) -> None:
    """Check the installation; set the seed, a number for each day, before the workers start."""
    project = tomllib.loads((config.rootpath / "pyproject.toml").read_text())["project"]
    declared = project["entry-points"][ENTRY_POINT_GROUP]
    installed = {plugin.name: plugin.value for plugin in entry_points(group=ENTRY_POINT_GROUP)}
    if declared.items() - installed.items():
        raise pytest.UsageError(
            "the installed plugins are not those of pyproject.toml: run `make env`, or "
            f"`{sys.executable} -m pip install -c constraints.txt -e .`"
        )
    if config.option.seed is None:
        config.option.seed = datetime.now(UTC).toordinal()
    if os.environ.get("TESTS_REQUIRE_ALL") and config.option.hypothesis_seed is None:
        config.option.hypothesis_seed = config.option.seed


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect the tests without garbage collections; exclude them from later ones.

    A garbage collection of these objects takes a second, and many tests collect, or allocate much.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """Let workers share files whose tests are separate, with `--dist loadfile`."""
    return make_scheduler(config, log) if config.getoption("dist") == "loadfile" else None


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("crash")
    group.addoption("--kills", type=int, default=20, help="number of kills")
    group.addoption(
        "--consumer-kills", type=int, default=3, help="number of kills under live consumers"
    )
    group.addoption("--pop-kills", type=int, default=2, help="number of kills while a group pops")
    group.addoption(
        "--power-cuts", type=int, default=2, help="number of power cuts under live consumers"
    )
    group.addoption(
        "--migration-kills", type=int, default=2, help="number of kills during migrations"
    )
    group.addoption(
        "--migration-results", type=Path, default=None, help="file for the results of that run"
    )
    group.addoption(
        "--failovers", type=int, default=10, help="number of failures of a group's master"
    )
    group.addoption(
        "--migration-failovers",
        type=int,
        default=1,
        help="number of failures of a group's master that migrates levels",
    )
    group.addoption(
        "--group-seeds", type=int, default=1, help="number of seeds of a simulated group"
    )
    group.addoption("--decisions", type=int, default=600, help="number of random decisions")
    group.addoption("--mutations", action="store_true", help="test each condition of the audit")
    group.addoption("--rust-client", action="store_true", help="compile the gRPC client for Rust")
    group.addoption("--planted", type=int, default=20_000, help="messages without faults")
    group.addoption(
        "--filter-expressions", type=int, default=10_000, help="number of random SQL92 filters"
    )
    group.addoption("--fuzz-inputs", type=int, default=6_000, help="number of hostile inputs")
    group.addoption("--seed", type=int, default=None, help="repeat the run of another day")
    group.addoption(
        "--days", type=int, default=1, help="days for all extended tests; run the part of this day"
    )


@pytest.fixture(scope="session")
def kills(request: pytest.FixtureRequest) -> int:
    return int(request.config.getoption("--kills"))


@pytest.fixture(scope="session")
def failovers(request: pytest.FixtureRequest) -> int:
    return int(request.config.getoption("--failovers"))


@pytest.fixture(scope="session")
def migration_failovers(request: pytest.FixtureRequest) -> int:
    return int(request.config.getoption("--migration-failovers"))


@pytest.fixture(scope="session")
def pop_kills(request: pytest.FixtureRequest) -> int:
    return int(request.config.getoption("--pop-kills"))


@pytest.fixture(scope="session")
def consumer_kills(request: pytest.FixtureRequest) -> int:
    return int(request.config.getoption("--consumer-kills"))


@pytest.fixture(scope="session")
def power_cuts(request: pytest.FixtureRequest) -> int:
    return int(request.config.getoption("--power-cuts"))


@pytest.fixture(scope="session")
def decisions(request: pytest.FixtureRequest) -> int:
    return int(request.config.getoption("--decisions"))


@pytest.fixture(scope="session")
def fuzz_inputs(request: pytest.FixtureRequest) -> int:
    return int(request.config.getoption("--fuzz-inputs"))


@pytest.fixture(scope="session")
def migration_kills(request: pytest.FixtureRequest) -> int:
    return int(request.config.getoption("--migration-kills"))


@pytest.fixture(scope="session")
def migration_results(request: pytest.FixtureRequest) -> Path | None:
    path: Path | None = request.config.getoption("--migration-results")
    return path


@pytest.fixture(scope="session")
def seed(request: pytest.FixtureRequest) -> int:
    """Seed of random runs, which a failed one prints."""
    return int(request.config.getoption("--seed"))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(
    item: pytest.Item, nextitem: pytest.Item | None
) -> Generator[None, None, None]:
    """Fail the last test of a file that leaves threads of a broker, a store or a client."""
    yield
    if nextitem is None or nextitem.path != item.path:
        check_threads(item.path.relative_to(item.config.rootpath))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Fail skipped tests in CI, where all requirements must be met."""
    report = yield
    if (
        report.skipped
        and not hasattr(report, "wasxfail")
        and os.environ.get("TESTS_REQUIRE_ALL") == "1"
    ):
        report.outcome = "failed"
        report.longrepr = f"skipped in CI: {call.excinfo.value if call.excinfo else 'no reason'}"
    return report
