"""Paths that begin with `~`: expanded, or refused with the key if there is no home directory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from duemq.auth.access import accounts_path, open_access
from duemq.auth.config import AuthConfig
from duemq.configuration.controller_config import ControllerConfig
from duemq.namesrv.config import NamesrvConfig
from duemq.namesrv.server import NameServer
from duemq.net.certificate_expiry import valid_until_ms
from duemq.net.tls import server_context
from duemq.net.tls_config import TlsConfig
from duemq_common.clock import SystemClock
from duemq_common.config import expanded
from duemq_common.errors import ConfigError
from message_store.config import StoreConfig
from tests.support.homeless import remove_home

ROOT = Path("/store")


@pytest.mark.parametrize("text", ["~/store", "/data/store", "store", "a~b", ""])
def test_a_path_is_expanded(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/user")
    assert expanded("key", text) == Path(text.replace("~/", "/home/user/"))


def test_the_home_of_an_unknown_user_is_refused() -> None:
    with pytest.raises(ConfigError, match="key=~absent-user/x: there is no such home"):
        expanded("key", "~absent-user/x")


USES: dict[str, Callable[[], object]] = {
    "storePathRootDir": lambda: StoreConfig().root,
    "storePathCommitLog": lambda: StoreConfig(commitlog_text="~/log").commitlog_dir,
    "storePathEpochFile": lambda: ControllerConfig(epoch_text="~/epochs").epoch_file(ROOT),
    "storePathBrokerIdentity": lambda: ControllerConfig(identity_text="~/id").identity_file(ROOT),
    "accountsFile": lambda: accounts_path(AuthConfig(accounts_file="~/accounts.json"), ROOT),
    "rocketmqHome": lambda: open_access(
        AuthConfig(acl_enable=True, home_text="~/mq"), ROOT, "cluster", lambda: 0
    ),
    "kvConfigPath": lambda: NameServer(NamesrvConfig(), SystemClock()),
    "tls.server.certPath": lambda: server_context(
        TlsConfig(server_key_path="~/key.pem", server_cert_path="~/cert.pem")
    ),
}


@pytest.mark.parametrize("key", USES)
def test_without_a_home_directory_the_key_is_named(
    key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    remove_home(monkeypatch)
    with pytest.raises(ConfigError, match="set a path that does not begin with ~") as caught:
        USES[key]()
    assert caught.value.key == key


def test_a_certificate_without_a_home_directory_has_no_end(monkeypatch: pytest.MonkeyPatch) -> None:
    remove_home(monkeypatch)
    assert valid_until_ms(Path("~/cert.pem")) is None
