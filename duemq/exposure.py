"""Warnings about ports that other machines can reach without authentication."""

from __future__ import annotations

import ipaddress
import logging
from dataclasses import dataclass
from typing import Final

log = logging.getLogger(__name__)
LOOPBACK: Final = "127.0.0.1"
EVERY_ADDRESS: Final = "0.0.0.0"


@dataclass(frozen=True, slots=True, kw_only=True)
class Listener:
    """One port that listens.

    Attributes:
        purpose: Name of the service on the port, for the message.
        address: IP address that it is bound to.
        port: port number.
        key: configuration key of the address.
        off: setting that closes the port, or "" if it cannot be closed.
    """

    purpose: str
    address: str
    port: int
    key: str
    off: str = ""


def is_loopback(address: str) -> bool:
    """Return whether only this machine reaches an address."""
    if address == "localhost":
        return True
    try:
        return ipaddress.ip_address(address.partition("%")[0]).is_loopback
    except ValueError:
        return False


def listening_address(configured: str, *, has_accounts: bool) -> str:
    """Return the address to listen on: without a word, other machines need accounts."""
    return configured or (EVERY_ADDRESS if has_accounts else LOOPBACK)


def local_only_notice(purpose: str) -> str:
    """Return what to log about a port that nothing opens to other machines."""
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
    """Log a warning about a port that other machines reach; most arguments are `Listener`'s.

    Args:
        checked: Whether requests there need an account; then there is no warning.
    """
    if checked:
        return
    listener = Listener(purpose=purpose, address=address, port=port, key=key, off=off)
    text = exposure_warning(listener)
    if text is not None:
        log.warning("%s", text)


def exposure_warning(listener: Listener) -> str | None:
    """Return a warning about an exposed port; None if only this machine reaches it."""
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
