"""Ports that other machines reach, and files that other users can read."""

from __future__ import annotations

import ipaddress
import logging
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from msgspec import Struct

from duemq_common.existence import exists
from duemq_common.masking import MASK, masked

log = logging.getLogger(__name__)
LOOPBACK: Final = "127.0.0.1"
EVERY_ADDRESS: Final = "0.0.0.0"
OTHER_USERS: Final = stat.S_IRWXG | stat.S_IRWXO


class ListeningPort(Struct, frozen=True, kw_only=True):
    """Listening port.

    Attributes:
        purpose: Name of the service on the port.
        address: IP address it is bound to.
        port: Port number.
        key: Configuration key of the address.
        off: Setting that closes the port; empty if there is none.
    """

    purpose: str
    address: str
    port: int
    key: str
    off: str = ""


def is_loopback(address: str) -> bool:
    """Return whether an address is reachable from this machine only."""
    if address == "localhost":
        return True
    try:
        return ipaddress.ip_address(address.partition("%")[0]).is_loopback
    except ValueError:
        return False


def listening_address(configured: str, *, has_accounts: bool) -> str:
    """Return the address to listen on; by default loopback unless there are accounts."""
    return configured or (EVERY_ADDRESS if has_accounts else LOOPBACK)


def local_only_notice(purpose: str) -> str:
    """Return the log text for a port that listens on loopback by default."""
    return (
        f"{purpose} listens on {LOOPBACK} only, so clients on other machines cannot connect: there "
        "are no accounts, and bindAddress is not set. Switch accounts on "
        "(authenticationEnabled=true), or set bindAddress=0.0.0.0 to serve every machine without "
        "authentication"
    )


def warn_if_exposed(
    purpose: str,
    address: str,
    port: int,
    *,
    key: str = "bindAddress",
    off: str = "",
    checked: bool = False,
) -> None:
    """Log a warning if other machines can reach a port; see `ListeningPort` for the arguments.

    Args:
        checked: Whether requests need an account; then there is no warning.
    """
    if checked:
        return
    listener = ListeningPort(purpose=purpose, address=address, port=port, key=key, off=off)
    text = exposure_warning(listener)
    if text is not None:
        log.warning("%s", text)


def exposure_warning(listener: ListeningPort) -> str | None:
    """Return the warning about an exposed port; None for loopback."""
    if is_loopback(listener.address):
        return None
    every = listener.address in ("0.0.0.0", "::")
    where = f"{'every address of this machine' if every else listener.address}"
    off = f", or {listener.off} to close the port" if listener.off else ""
    return (
        f"{listener.purpose} listens on {where}, port {listener.port}, without authentication: "
        f"every machine that reaches the port may use and administer it. Close the port to other "
        f"networks in the firewall, or set {listener.key}=127.0.0.1{off}"
    )


def warn_of_readable_secrets(file: Path | None, properties: Mapping[str, str]) -> None:
    """Log a warning if every user of the machine can read a configuration file with secrets."""
    keys = sorted(key for key, value in properties.items() if value and masked(key, value) == MASK)
    if file is None or not keys:
        return
    try:
        mode = file.stat().st_mode
    except OSError:
        return
    if mode & stat.S_IROTH:
        log.warning(
            "%s has secrets (%s), and every user of this machine can read it: run `chmod 600 %s`, "
            "and change them if others have accounts here",
            file,
            ", ".join(keys),
            file,
        )


def keep_store_private(root: Path) -> None:
    """Create files without access for other users, if a store is new or was created in this way.

    A broker with accounts calls it before it creates the store: files are 0600, directories 0700.
    """
    if not exists(root) or not root.stat().st_mode & OTHER_USERS:
        os.umask(OTHER_USERS)
