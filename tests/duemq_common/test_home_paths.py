"""Paths that begin with `~`: expanded, or refused with the key if there is no home directory."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from duemq.auth.access import accounts_path, open_access
from duemq.auth.accounts_file import open_accounts
from duemq.auth.config import AuthConfig
from duemq.auth.model import User, UserType
from duemq.cli.app import app
from duemq.cli.cache_home import use_writable_cache
from duemq.configuration.controller_config import ControllerConfig
from duemq.namesrv.config import NamesrvConfig
from duemq.namesrv.name_servers import _access_of
from duemq.namesrv.server import NameServer
from duemq.net.certificate_expiry import valid_until_ms
from duemq.net.tls import server_context
from duemq.net.tls_config import TlsConfig
from duemq_common.clock import SystemClock
from duemq_common.config import expanded, from_properties
from duemq_common.errors import ConfigError
from message_store.config import StoreConfig
from message_store.kernels import cache_directory
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


def test_accounts_of_a_name_server_are_next_to_its_file_in_the_home_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server reads them, and the command lists them."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    path = accounts_path(AuthConfig(), tmp_path / "namesrv")
    path.parent.mkdir()
    open_accounts(path).create_user(User("root", "secret-of-root", UserType.SUPER))
    keys = {"kvConfigPath": "~/namesrv/kvConfig.json", "authenticationEnabled": "true"}

    config = from_properties(NamesrvConfig, keys)
    access = _access_of(config, from_properties(AuthConfig, keys), SystemClock())
    assert access is not None
    assert access.accounts is not None
    assert access.accounts.user("root") is not None

    overrides = [word for key, value in keys.items() for word in ("--set", f"{key}={value}")]
    listed = CliRunner().invoke(app, ["accounts", "list", "--name-server", "--json", *overrides])
    assert [row["user"] for row in json.loads(listed.stdout)] == ["root"]


def test_the_kernel_cache_is_in_the_home_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """systemd and containers do not expand the value, as a shell does."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DUEMQ_KERNEL_CACHE", "~/kernels")
    assert cache_directory() == tmp_path / "kernels"  # of a broker without a command
    assert use_writable_cache() == ""
    assert cache_directory() == tmp_path / "kernels"
    assert [path.name for path in tmp_path.iterdir()] == ["kernels"]

    monkeypatch.setenv("DUEMQ_KERNEL_CACHE", "~absent-user/kernels")
    with pytest.raises(ConfigError, match="DUEMQ_KERNEL_CACHE=~absent-user/kernels: there is no"):
        use_writable_cache()


def test_a_certificate_without_a_home_directory_has_no_end(monkeypatch: pytest.MonkeyPatch) -> None:
    remove_home(monkeypatch)
    assert valid_until_ms(Path("~/cert.pem")) is None
