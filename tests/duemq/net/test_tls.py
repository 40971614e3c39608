"""TLS certificates: verification on both sides, reload, unusable files."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import ssl
from pathlib import Path

import pytest

from duemq.net import tls
from duemq.net.client import RemotingClient
from duemq.net.dispatcher import Dispatcher
from duemq.net.limits import RemotingLimits
from duemq.net.server import RemotingServer
from duemq.net.tls import ClientTls, ServerTls, Tls, client_context, load_tls
from duemq.net.tls_config import TlsConfig
from duemq_common.clock import FakeClock
from duemq_common.errors import ConfigError
from duemq_common.request import Request
from tests.duemq.net.conftest import Run
from tests.support.certificates import EXPIRED, Authority, CertificateFiles, trusting_context
from tests.support.raw_connection import WAIT_S, echo


def server_config(files: CertificateFiles, **more: object) -> TlsConfig:
    return TlsConfig(
        test_mode=False,
        config_file="",
        server_cert_path=str(files.certificate),
        server_key_path=str(files.key),
        **more,
    )


def serving(tls: ServerTls) -> RemotingServer:
    return RemotingServer(Dispatcher({11: echo}), clock=FakeClock(), tls=tls)


async def serial_of(port: int, context: ssl.SSLContext) -> int:
    """Return the serial number of the server's certificate.

    Raises:
        OSError: The handshake or the call fails.
    """
    async with RemotingClient(f"127.0.0.1:{port}", tls=context) as client:
        await client.call(Request(11, {}), timeout_s=WAIT_S)
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    found = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    from cryptography.x509 import load_der_x509_certificate

    return load_der_x509_certificate(found).serial_number


def test_a_client_that_verifies_accepts_the_certificate(run: Run, tmp_path: Path) -> None:
    async def main() -> None:
        authority = Authority(tmp_path)
        async with serving(ServerTls(server_config(authority.issue("server")))) as remoting:
            await remoting.start("127.0.0.1", 0)
            await serial_of(remoting.ports[0], authority.client_context())

    run(main())


@pytest.mark.parametrize("fault", ["expired", "other host", "other authority"])
def test_a_client_that_verifies_refuses_a_wrong_certificate(
    run: Run, tmp_path: Path, fault: str
) -> None:
    async def main() -> None:
        authority, other = Authority(tmp_path), Authority(tmp_path, "other")
        files = {
            "expired": lambda: authority.issue("server", not_after=EXPIRED),
            "other host": lambda: authority.issue("server", "broker.example"),
            "other authority": lambda: other.issue("server"),
        }[fault]()
        async with serving(ServerTls(server_config(files))) as remoting:
            await remoting.start("127.0.0.1", 0)
            port = remoting.ports[0]
            config = TlsConfig(
                use_tls=True,
                test_mode=False,
                auth_server=True,
                client_trust_path=str(authority.path),
            )
            verifying = client_context(config)
            assert verifying is not None
            with pytest.raises(ssl.SSLCertVerificationError):
                await serial_of(port, verifying)
            await serial_of(port, trusting_context())

    run(main())


@pytest.mark.parametrize(
    ("need", "presented", "accepted"),
    [
        ("require", "good", True),
        ("require", "none", False),
        ("require", "other", False),
        ("require", "expired", False),
        ("optional", "none", True),
        ("optional", "good", True),
        ("optional", "other", False),
        ("optional", "expired", False),
        ("none", "none", True),
    ],
)
def test_client_certificates(
    run: Run, tmp_path: Path, need: str, presented: str, accepted: bool
) -> None:
    async def main() -> None:
        authority, other = Authority(tmp_path), Authority(tmp_path, "other")
        config = server_config(
            authority.issue("server"),
            need_client_auth=need,
            auth_client=True,
            server_trust_path=str(authority.path),
        )
        issuers = {"good": authority, "other": other, "expired": authority}
        end = EXPIRED if presented == "expired" else None
        issuer = issuers.get(presented)
        files = issuer.issue("client", not_after=end) if issuer is not None else None
        async with serving(ServerTls(config)) as remoting:
            await remoting.start("127.0.0.1", 0)
            try:
                await serial_of(remoting.ports[0], authority.client_context(files))
            except OSError:
                assert not accepted
            else:
                assert accepted

    run(main())


def test_a_new_certificate_is_used_without_a_restart(
    run: Run, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        authority = Authority(tmp_path)
        files = authority.issue("server")
        tls = ServerTls(server_config(files))
        context = authority.client_context()
        async with serving(tls) as remoting:
            await remoting.start("127.0.0.1", 0)
            port = remoting.ports[0]
            async with RemotingClient(f"127.0.0.1:{port}", tls=context) as first:
                await first.call(Request(11, {}), timeout_s=WAIT_S)
                before = await serial_of(port, context)
                new = authority.issue("new")
                _replace(new.certificate, files.certificate)  # half of a rotation
                tls.reload_if_changed()
                assert tls.failed
                assert await serial_of(port, context) == before
                _replace(new.key, files.key)
                tls.reload_if_changed()
                assert (tls.failed, tls.reload_count) == (False, 1)
                assert await serial_of(port, context) != before
                await first.call(Request(11, {}), timeout_s=WAIT_S)

    with caplog.at_level(logging.INFO):
        run(main())
    assert "the old ones stay" in caplog.text


def _replace(new: Path, old: Path) -> None:
    copy = old.with_suffix(".tmp")
    shutil.copyfile(new, copy)
    os.replace(copy, old)


def test_a_change_of_permissions_makes_files_usable(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A renewed key that the broker's user may not read is loaded after chmod or chown."""

    def unreadable(name: str, path: str) -> None:
        raise ConfigError(name, path, "cannot be read: Permission denied")

    async def main() -> None:
        authority = Authority(tmp_path)
        files, new = authority.issue("server"), authority.issue("new")
        server = ServerTls(server_config(files))
        _replace(new.certificate, files.certificate)
        _replace(new.key, files.key)
        with monkeypatch.context() as patch:
            patch.setattr(tls, "_check_readable", unreadable)
            server.reload_if_changed()
        assert server.failed
        server.reload_if_changed()
        assert server.failed
        before_ns = files.key.stat().st_ctime_ns
        while files.key.stat().st_ctime_ns == before_ns:  # the clock of a file system is coarse
            files.key.chmod(0o600)
        server.reload_if_changed()
        assert (server.failed, server.reload_count) == (False, 1)

    run(main())


def test_a_server_reports_an_expired_certificate(
    run: Run, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        files = Authority(tmp_path).issue("server", not_after=EXPIRED)
        clock = FakeClock()
        server = RemotingServer(Dispatcher(), clock=clock, tls=ServerTls(server_config(files)))
        async with server as remoting:
            await remoting.start("127.0.0.1", 0)
            for _ in range(20):  # the turns of the loop in which the periodic check wakes up
                await asyncio.sleep(0)
                clock.advance(RemotingLimits().sweep_ms)

    run(main())
    assert caplog.text.count("the certificate expired on 2021-01-01") == 1


def test_a_file_that_vanishes_while_it_is_loaded_is_a_failed_reload(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OpenSSL raises OSError then; the periodic check must not end."""

    async def main() -> None:
        authority = Authority(tmp_path)
        files = authority.issue("server")
        server = ServerTls(
            server_config(
                files,
                need_client_auth="require",
                auth_client=True,
                server_trust_path=str(authority.path),
            )
        )
        monkeypatch.setattr(tls, "_check_readable", lambda name, path: None)
        for path in (authority.path, files.key):
            path.unlink()
            server.reload_if_changed()
            assert server.failed

    run(main())


def test_renewed_certificates_of_the_client_are_used_for_new_connections(
    run: Run, tmp_path: Path
) -> None:
    """A broker stays registered at a name server that requires certificates."""

    async def main() -> None:
        authority, new_authority = Authority(tmp_path), Authority(tmp_path, "new-ca")
        mine = authority.issue("mine")
        config = TlsConfig(
            test_mode=False,
            config_file="",
            use_tls=True,
            auth_server=True,
            client_trust_path=str(authority.path),
            client_cert_path=str(mine.certificate),
            client_key_path=str(mine.key),
        )
        client = ClientTls(config)
        renewed = new_authority.issue("server")
        server = server_config(
            renewed,
            need_client_auth="require",
            auth_client=True,
            server_trust_path=str(new_authority.path),
        )
        async with serving(ServerTls(server)) as remoting:
            await remoting.start("127.0.0.1", 0)
            address = f"127.0.0.1:{remoting.ports[0]}"
            async with RemotingClient(address, tls=client.context) as caller:
                with pytest.raises(OSError, match="certificate verify failed"):
                    await caller.call(Request(11, {}), timeout_s=WAIT_S)
                new = new_authority.issue("new")
                _replace(new.certificate, mine.certificate)
                with pytest.raises(OSError, match="certificate verify failed"):
                    await caller.call(Request(11, {}), timeout_s=WAIT_S)
                assert Tls(ServerTls(server), client).reload_failed
                _replace(new.key, mine.key)
                _replace(new_authority.path, authority.path)
                assert (await caller.call(Request(11, {}), timeout_s=WAIT_S)).code == 0
        assert (client.failed, Tls(ServerTls(server), client).reload_count) == (False, 1)

    run(main())


def test_an_unchanged_file_is_not_loaded_again(run: Run, tmp_path: Path) -> None:
    async def main() -> None:
        tls = ServerTls(server_config(Authority(tmp_path).issue("server")))
        tls.reload_if_changed()
        assert tls.reload_count == 0

    run(main())


def broken(tmp_path: Path, what: str) -> TlsConfig:
    """Return an unusable configuration."""
    authority = Authority(tmp_path)
    files, other = authority.issue("server"), authority.issue("other")
    absent = tmp_path / "absent.pem"
    match what:
        case "no certificate":
            return TlsConfig(test_mode=False)
        case "absent":
            return server_config(CertificateFiles(absent, files.key))
        case "torn":
            files.certificate.write_bytes(files.certificate.read_bytes()[:200])
            return server_config(files)
        case "other key":
            return server_config(CertificateFiles(files.certificate, other.key))
        case "swapped":
            return server_config(CertificateFiles(files.key, files.certificate))
        case "empty certificate":
            files.certificate.write_bytes(b"")
            return server_config(files)
        case "empty key":
            files.key.write_bytes(b"")
            return server_config(files)
        case "encrypted":
            files.key.write_bytes(_encrypted(files.key.read_bytes()))
            return server_config(files)
        case "unverified":
            return server_config(files, need_client_auth="require")
    trust = tmp_path / "trust.pem"
    trust.write_bytes(b"no authority")
    path = str(trust if what == "no authority" else absent)
    return server_config(
        files, need_client_auth="require", auth_client=True, server_trust_path=path
    )


def _encrypted(pem: bytes) -> bytes:
    from cryptography.hazmat.primitives import serialization

    key = serialization.load_pem_private_key(pem, None)
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"pass"),
    )


@pytest.mark.parametrize(
    ("what", "key"),
    [
        ("no certificate", "tls.server.certPath"),
        ("absent", "tls.server.certPath"),
        ("torn", "tls.server.certPath"),
        ("other key", "tls.server.keyPath"),
        ("swapped", "tls.server.certPath=.* has no CERTIFICATE block"),
        ("empty certificate", r"tls.server.certPath=.* has no CERTIFICATE block.* \(0 bytes\)"),
        ("empty key", r"tls.server.keyPath=.* has no PRIVATE KEY block.* \(0 bytes\)"),
        ("encrypted", "tls.server.keyPassword"),
        ("unverified", "tls.server.authClient=true"),
        ("no authority", "tls.server.trustCertPath"),
        ("absent authority", "tls.server.trustCertPath"),
    ],
)
def test_files_that_cannot_be_used_name_their_key(
    run: Run, tmp_path: Path, what: str, key: str
) -> None:
    async def main() -> None:
        with pytest.raises(ConfigError, match=key):
            ServerTls(broken(tmp_path, what))

    run(main())


def test_an_encrypted_key_is_opened_by_its_password(run: Run, tmp_path: Path) -> None:
    async def main() -> None:
        files = Authority(tmp_path).issue("server")
        files.key.write_bytes(_encrypted(files.key.read_bytes()))
        ServerTls(server_config(files, server_key_password="pass"))

    run(main())


def test_the_properties_file_takes_precedence(
    run: Run, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        files = Authority(tmp_path).issue("server")
        file = tmp_path / "tls.properties"
        file.write_text(
            f"tls.test.mode.enable=false\ntls.server.certPath={files.certificate}\n"
            f"tls.server.keyPath={files.key}\ntls.server.mode=enforcing\n"
        )
        found = TlsConfig(config_file=str(file), server_cert_path="/other").with_file()
        assert (found.test_mode, found.server_cert_path) == (False, str(files.certificate))
        assert found.mode == "permissive"  # Apache takes the mode from its own key only
        load_tls(TlsConfig(config_file=str(file)))
        file.write_text("tls.test.mode.enable=perhaps")
        with pytest.raises(ConfigError, match=r"tls\.properties"):
            load_tls(TlsConfig(config_file=str(file)))

    run(main())


def test_certificates_in_test_mode_are_a_notice(
    run: Run, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        load_tls(TlsConfig(config_file="", server_cert_path="/x"))

    with caplog.at_level(logging.WARNING):
        run(main())
    assert "tls.test.mode.enable=false" in caplog.text


@pytest.mark.parametrize(
    ("config", "by_tls"),
    [
        (TlsConfig(), False),
        (TlsConfig(use_tls=True), True),
        (TlsConfig(tls_enable=True), True),
        (TlsConfig(mode="enforcing"), True),
    ],
)
def test_when_name_servers_are_asked_by_tls(config: TlsConfig, by_tls: bool) -> None:
    assert (load_tls(config).client is not None) == by_tls


@pytest.mark.finding("3S8")
def test_only_authenticated_encryption_is_offered(tmp_path: Path) -> None:
    files = Authority(tmp_path).issue("server")
    contexts = [
        tls.self_signed_context(),
        tls.server_context(server_config(files)),
        client_context(TlsConfig()),
    ]
    for context in contexts:
        suites = context.get_ciphers()
        assert suites
        assert [each["name"] for each in suites if not each["aead"]] == []
