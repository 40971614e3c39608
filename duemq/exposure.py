"""Warnings about ports that other machines can reach without authentication."""

from __future__ import annotations

import ipaddress
import logging
from dataclasses import dataclass

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Listener:
    """One port that listens.

    Attributes:
        purpose: what is served there, for the message.
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


def warn_if_exposed(
    purpose: str, address: str, port: int, *, key: str = "bindAddress", off: str = ""
) -> None:
    """Log a warning about a port that other machines reach; the arguments are `Listener`'s."""
    listener = Listener(purpose=purpose, address=address, port=port, key=key, off=off)
    text = exposure_warning(listener)
    if text is not None:
        log.warning("%s", text)


def exposure_warning(listener: Listener) -> str | None:
    """Return what an operator should know about a port; None: only this machine reaches it."""
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
