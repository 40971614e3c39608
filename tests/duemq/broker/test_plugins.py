"""Finding, loading and joining plugins."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from delayed_delivery.plugin import BrokerPlugin, PluginBase, SystemTopic
from duemq.broker.plugins import Host, PluginSet, installed_plugins
from duemq_common.clock import FakeClock
from duemq_common.config import options
from duemq_common.errors import ConfigError, PluginError
from duemq_common.request import Request, Response
from schedule_service.tags_code_rule import LevelRule
from tests.duemq.distributions import COUNTING_PLUGIN, install

DELIVERY_PLUGINS = ["migration", "schedule_service", "timer_store"]
MINIMAL = (
    "from delayed_delivery.plugin import PluginBase\ndef create_plugin(host): return PluginBase()\n"
)


def make_host(name: str, stops: list[str] | None = None, **properties: str) -> Host:
    return Host(
        plugin_name=name,
        clock=FakeClock(),
        properties=properties,
        store_root="/nowhere",
        scheduler=None,
        metrics=None,
        on_stop=(stops if stops is not None else []).append,
    )


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory on the import path; what is imported from it is forgotten afterwards."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in set(sys.modules) - before:
        if getattr(sys.modules[name], "__file__", None) and str(tmp_path) in str(
            sys.modules[name].__file__
        ):
            del sys.modules[name]


def names(disabled: frozenset[str] = frozenset()) -> list[str]:
    ours = {"migration", "reconciliation", "recurring_schedules", "schedule_service", "timer_store"}
    return [item.name for item in installed_plugins(disabled | ours)]


def test_an_installed_distribution_is_found(site: Path) -> None:
    install(site, "counting", COUNTING_PLUGIN)
    [found] = [item for item in installed_plugins() if item.name == "counting"]
    assert found.origin == "counting 1.0, counting:create_plugin"
    loaded = PluginSet.load([found], make_host)
    assert isinstance(loaded.plugins["counting"], PluginBase)
    [section] = loaded.sections()
    assert [item.key for item in options(section)] == ["countingWord"]


def test_plugins_are_ordered_by_name(site: Path) -> None:
    for name in ("second", "first"):
        install(site, name, MINIMAL)
    assert names() == ["first", "second"]


def test_a_disabled_plugin_is_not_loaded(site: Path) -> None:
    install(site, "first", "raise RuntimeError('must not be imported')")
    assert names(frozenset({"first"})) == []


def test_a_name_that_is_offered_twice_is_refused(site: Path) -> None:
    install(site, "one", MINIMAL, plugin="same")
    install(site, "two", MINIMAL, plugin="same")
    with pytest.raises(PluginError, match=r"plugin same is installed twice.*1\.0.*1\.0"):
        names()


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("import no_such_module", "ModuleNotFoundError"),
        ("x = 1", "AttributeError"),
        ("def create_plugin(host): raise KeyError('a')", "KeyError: 'a'"),
        ("def create_plugin(host): return object()", "lacks config_class.*derive it"),
    ],
    ids=["import", "no factory", "factory fails", "not a plugin"],
)
def test_a_broken_plugin_is_named(site: Path, source: str, why: str) -> None:
    install(site, "broken", source)
    with pytest.raises(PluginError, match=f"plugin broken .*{why}") as caught:
        PluginSet.load([i for i in installed_plugins() if i.name == "broken"], make_host)
    assert "broken 1.0, broken:create_plugin" in str(caught.value)


def test_a_configuration_error_of_a_plugin_passes_as_it_is(site: Path) -> None:
    source = (
        "from duemq_common.errors import ConfigError\n"
        "def create_plugin(host): raise ConfigError('k', 'v', 'no')\n"
    )
    install(site, "broken", source)
    with pytest.raises(ConfigError, match="k=v: no"):
        PluginSet.load([i for i in installed_plugins() if i.name == "broken"], make_host)


class Sample(PluginBase):
    def __init__(self, **responses: Any) -> None:
        for method, response in responses.items():
            setattr(self, method, lambda response=response: response)


async def handler(request: Request) -> Response:
    return Response()


def plugin_set(**plugins: BrokerPlugin) -> PluginSet:
    return PluginSet(plugins)


def test_what_plugins_bring_is_joined_in_order() -> None:
    def hook_a(batch: Any, now_ms: int) -> None: ...
    def hook_b(batch: Any, now_ms: int) -> None: ...

    joined = plugin_set(
        a=Sample(put_hooks=[hook_a], system_topics=[SystemTopic("A", 1)]),
        b=Sample(put_hooks=[hook_b], request_handlers={9001: handler}, admin_views={"v": dict}),
    )
    assert joined.put_hooks() == [hook_a, hook_b]
    assert joined.system_topics() == [SystemTopic("A", 1)]
    assert [joined.has_topic(name) for name in "AB"] == [True, False]
    assert joined.request_handlers({}) == {9001: handler}
    assert list(joined.admin_views()) == ["b.v"]


def ordered(**declared: tuple[tuple[str, ...], tuple[str, ...]]) -> list[str]:
    plugins: dict[str, BrokerPlugin] = {}
    for name, (before, after) in declared.items():
        plugins[name] = Sample()
        plugins[name].before, plugins[name].after = before, after
    return list(PluginSet(plugins).plugins)


@pytest.mark.parametrize(
    ("declared", "expected"),
    [
        ({"a": ((), ()), "b": ((), ())}, ["a", "b"]),
        ({"a": ((), ("b",)), "b": ((), ())}, ["b", "a"]),
        ({"a": ((), ()), "b": (("a",), ())}, ["b", "a"]),
        ({"a": ((), ("z",)), "b": ((), ())}, ["a", "b"]),
        ({"a": ((), ("c",)), "b": (("a",), ()), "c": ((), ())}, ["b", "c", "a"]),
    ],
    ids=["names", "after", "before", "not loaded", "both"],
)
def test_plugins_are_in_the_order_that_they_declare(
    declared: dict[str, Any], expected: list[str]
) -> None:
    assert ordered(**declared) == expected


def test_plugins_that_precede_each_other_are_refused() -> None:
    with pytest.raises(PluginError, match="plugin a cannot be ordered: a, b precede each other"):
        ordered(a=(("b",), ()), b=(("a",), ()), c=((), ()))


@pytest.mark.parametrize("order", list(itertools.permutations(DELIVERY_PLUGINS)))
def test_the_stages_of_the_put_path_do_not_depend_on_names(order: tuple[str, ...]) -> None:
    found = {item.name: item for item in installed_plugins()}
    loaded = PluginSet.load([found[name] for name in order], make_host)
    assert list(loaded.plugins) == DELIVERY_PLUGINS


@pytest.mark.parametrize("taken", [{9001: handler}, {}], ids=["by the broker", "by a plugin"])
def test_a_request_code_has_one_owner(taken: dict[int, Any]) -> None:
    joined = plugin_set(
        a=Sample(request_handlers={} if taken else {9001: handler}),
        b=Sample(request_handlers={9001: handler}),
    )
    with pytest.raises(PluginError, match="plugin b request code 9001 already has a handler"):
        joined.request_handlers(taken)


def test_a_topic_has_one_tags_code_rule() -> None:
    rule = LevelRule("T", ())
    joined = plugin_set(a=Sample(tags_code_rules=[rule]), b=Sample(tags_code_rules=[rule]))
    with pytest.raises(PluginError, match="plugin b another plugin has a tags code rule for T"):
        joined.tags_code_rules()


def test_each_plugin_pins_the_log() -> None:
    joined = plugin_set(a=Sample(first_pending_offset=7), b=Sample(first_pending_offset=None))
    assert {name: pin() for name, pin in joined.log_pins().items()} == {"a": 7, "b": None}


def test_a_failing_answer_names_the_plugin() -> None:
    class Failing(PluginBase):
        def dispatchers(self) -> Any:
            raise ValueError("oh")

    with pytest.raises(PluginError, match=r"plugin a dispatchers\(\) failed: ValueError: oh"):
        plugin_set(a=Failing()).dispatchers()


def test_a_plugin_may_stop_the_broker() -> None:
    stops: list[str] = []
    make_host("timer", stops).stop("its files are damaged")
    assert stops == ["plugin timer: its files are damaged"]
