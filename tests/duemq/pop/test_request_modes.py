"""messageRequestMode.json, in Apache's form."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from duemq.pop.request_modes import POP, PULL, RequestMode, RequestModes
from duemq.registry.config_file import ConfigFile
from duemq_common.errors import CorruptStore, RequestError

APACHE = {
    "messageRequestModeMap": {
        "T": {"g": {"consumerGroup": "g", "mode": "POP", "popShareQueueNum": 3, "topic": "T"}}
    }
}


def test_a_mode_survives_a_restart_in_apaches_form(tmp_path: Path) -> None:
    modes = RequestModes.loaded(lambda name: tmp_path / name)
    asyncio.run(modes.set("T", "g", RequestMode(POP, 3)))
    assert json.loads((tmp_path / "messageRequestMode.json").read_text()) == APACHE
    again = RequestModes.loaded(lambda name: tmp_path / name)
    assert again.find("T", "g") == RequestMode(POP, 3)
    assert again.find("T", "h") is None


def test_a_replica_takes_the_table_of_its_master(tmp_path: Path) -> None:
    modes = RequestModes.loaded(lambda name: tmp_path / name)
    asyncio.run(modes.set("U", "g", RequestMode(POP)))
    modes.replace_by(APACHE)
    assert modes.to_json() == APACHE
    assert RequestModes.loaded(lambda name: tmp_path / name).find("U", "g") is None


def test_a_table_has_a_limit(tmp_path: Path) -> None:
    modes = RequestModes(ConfigFile(tmp_path / "m.json"), modes_max=1)
    asyncio.run(modes.set("T", "g", RequestMode(POP)))
    asyncio.run(modes.set("T", "g", RequestMode(PULL)))
    with pytest.raises(RequestError):
        asyncio.run(modes.set("T", "h", RequestMode(POP)))


def test_a_number_of_queues_is_an_int_of_java() -> None:
    for shared in (-(1 << 31), (1 << 31) - 1):
        assert RequestMode.of({"mode": POP, "popShareQueueNum": shared}) == RequestMode(POP, shared)
    for shared in (-(1 << 31) - 1, 1 << 31):
        with pytest.raises(ValueError, match="popShareQueueNum"):
            RequestMode.of({"mode": POP, "popShareQueueNum": shared})


@pytest.mark.parametrize(
    "text",
    [
        '{"messageRequestModeMap":5}',
        '{"messageRequestModeMap":{"T":{"g":5}}}',
        '{"messageRequestModeMap":{"T":{"g":{"mode":"PUSH"}}}}',
        '{"messageRequestModeMap":{"T":{"g":{"mode":"POP","popShareQueueNum":"x"}}}}',
    ],
)
def test_a_malformed_file_stops_the_start(tmp_path: Path, text: str) -> None:
    (tmp_path / "messageRequestMode.json").write_text(text)
    with pytest.raises(CorruptStore):
        RequestModes.loaded(lambda name: tmp_path / name)
