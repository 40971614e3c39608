"""`duemq context`, and the options that commands take from a context."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from duemq.cli.exits import Exit
from duemq.cli.options import NAMESRV, Target
from tests.support.commands import duemq
from tests.support.homeless import remove_home


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    return tmp_path / "duemq" / "contexts.json"


def succeeded(*words: str) -> str:
    done = duemq(*words)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_context_is_added_used_and_removed(home: Path) -> None:
    assert Target().namesrv == NAMESRV
    secret = ("--access-key", "ops", "--secret-file", "secret.txt")
    added = succeeded("context", "add", "prod", "--namesrv", "mq1:9876;mq2:9876", *secret)
    assert added == "context prod added; the current one is prod\n"
    assert stat.S_IMODE(home.stat().st_mode) == 0o600
    succeeded("context", "add", "dev", "--broker", "127.0.0.1:10911", "--tls")

    prod = Target()
    assert (prod.namesrv, prod.access_key) == ("mq1:9876;mq2:9876", "ops")
    assert prod.secret_file == Path.cwd() / "secret.txt"
    assert (Target(context_name="dev").broker, Target(context_name="dev").tls) == (
        "127.0.0.1:10911",
        True,
    )

    succeeded("context", "use", "dev")
    assert Target().broker == "127.0.0.1:10911"
    listed = json.loads(succeeded("context", "list", "--json"))
    assert (listed["current"], sorted(listed["contexts"])) == ("dev", ["dev", "prod"])
    succeeded("context", "remove", "dev")
    assert Target().namesrv == NAMESRV


def test_servers_of_the_command_line_come_before_those_of_a_context() -> None:
    succeeded("context", "add", "prod", "--broker", "prod:1", "--tls")
    plain = Target(namesrv="other:1")
    assert (plain.namesrv, plain.broker, plain.tls) == ("other:1", "", False)
    named = Target(namesrv="other:1", context_name="prod")
    assert (named.namesrv, named.broker, named.tls) == ("other:1", "", True)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("add", "a"), "either --namesrv or --broker"),
        (("add", "a", "-n", "x:1", "-b", "y:1"), "either --namesrv or --broker"),
        (("add", "a", "-n", "nowhere"), "'nowhere' is not host:port"),
        (("add", "a", "-n", "x:1", "--access-key", "u"), "both --access-key and --secret-file"),
        (("use", "missing"), "there is no context missing; there are: none"),
        (("remove", "missing"), "there is no context missing"),
    ],
)
def test_wrong_usage_changes_nothing(home: Path, words: tuple[str, ...], text: str) -> None:
    done = duemq("context", *words)
    assert (done.returncode, text in done.stderr) == (Exit.USAGE, True), done.stderr
    assert not home.exists()


def test_a_context_is_not_replaced_by_accident() -> None:
    succeeded("context", "add", "a", "-n", "x:1")
    done = duemq("context", "add", "a", "-n", "y:1")
    assert (done.returncode, "change it with --replace" in done.stderr) == (Exit.USAGE, True)
    succeeded("context", "add", "a", "-n", "y:1", "--replace")
    assert Target().namesrv == "y:1"


@pytest.mark.parametrize("text", ["", "[]", '{"contexts": {"a": {"color": "blue"}}}', "{"])
def test_a_malformed_file_is_one_line(home: Path, text: str) -> None:
    home.parent.mkdir()
    home.write_text(text)
    done = duemq("levels")
    assert (done.returncode, "is not a file of contexts" in done.stderr) == (Exit.USAGE, True)
    assert len(done.stderr.splitlines()) == 1


def test_data_is_printed_in_each_format() -> None:
    succeeded("context", "add", "a", "-n", "x:1")
    data = {"current": "a", "contexts": {"a": {"namesrv": "x:1"}}}
    assert json.loads(succeeded("context", "list", "--output", "json")) == data
    yaml = "current: a\ncontexts:\n  a:\n    namesrv: x:1\n"
    assert succeeded("context", "list", "-o", "yaml") == yaml
    assert succeeded("context", "list", "-o", "table") == succeeded("context", "list")
    assert duemq("context", "list", "-o", "xml").returncode == Exit.USAGE


def test_a_user_without_a_home_directory_has_no_contexts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CONFIG_HOME")
    remove_home(monkeypatch)
    assert Target().namesrv == NAMESRV
    for words in (("context", "list"), ("context", "add", "a", "--broker", "127.0.0.1:1")):
        done = duemq(*words)
        assert (done.returncode, done.stderr.splitlines()[-1]) == (
            Exit.USAGE,
            "duemq: this user has no home directory: set XDG_CONFIG_HOME to a directory",
        )


@pytest.mark.parametrize("option", ["--tls-ca", "--tls-cert"])
def test_an_error_of_a_certificate_names_the_option(tmp_path: Path, option: str) -> None:
    done = duemq("topic", "list", "--broker", "127.0.0.1:1", option, str(tmp_path / "absent.pem"))
    assert done.returncode == Exit.USAGE, done.stderr
    assert f"{option} {tmp_path}/absent.pem: cannot be read: No such file" in done.stderr
