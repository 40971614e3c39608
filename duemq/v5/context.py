"""Context of a v5 call: who makes it, from its metadata.

    authorization: MQv2-HMAC-SHA1 Credential=KEY, SignedHeaders=x-mq-date-time, Signature=HEX

The signature is HMAC-SHA1 of the field x-mq-date-time. It covers nothing else, as in Apache's
proxy: a peer that reads it can use it for other calls. Use TLS.

Source: ContextInitPipeline, DefaultAuthenticationContextBuilder, AclSigner
"""

from __future__ import annotations

import asyncio
import hmac
from dataclasses import dataclass
from typing import Final

from duemq.net.http2.grpc_call import GrpcCall
from duemq.v5.protocol import definition as v2
from duemq.v5.status import V5Error

SCHEME: Final = "MQv2-HMAC-SHA1"
CLIENT_ID_CHARS_MAX: Final = 255
LANGUAGES: Final = frozenset(
    {
        *("JAVA", "CPP", "DOTNET", "PYTHON", "DELPHI", "ERLANG", "RUBY", "OTHER", "HTTP", "GO"),
        *("PHP", "OMS", "RUST", "NODE_JS"),
    }
)
"""Languages as requests of remoting clients name them. LanguageCode"""


@dataclass(frozen=True, slots=True)
class Signature:
    """What a client signs with: its access key, and the signature in hexadecimal digits."""

    access_key: str
    digits: str
    signed: str

    def is_of(self, secret: str) -> bool:
        """Return whether this secret makes the signature."""
        expected = hmac.digest(secret.encode(), self.signed.encode("utf-8", "replace"), "sha1")
        return hmac.compare_digest(expected.hex().encode(), self.digits.lower().encode())


@dataclass(frozen=True, slots=True)
class CallContext:
    """Who makes a call.

    Attributes:
        signature: Its credentials; None: there are none.
        deadline_s: When the client gives up, on the loop's clock; None: it does not say.
    """

    client_id: str
    address: tuple[str, int]
    language: str
    version: str
    signature: Signature | None
    deadline_s: float | None

    @property
    def access_key(self) -> str:
        """Name of the account; empty: none."""
        return "" if self.signature is None else self.signature.access_key

    def remaining_ms(self) -> int | None:
        """Return for how long the client waits; None: it does not say."""
        if self.deadline_s is None:
            return None
        return int((self.deadline_s - asyncio.get_running_loop().time()) * 1_000)


def context_of(call: GrpcCall) -> CallContext:
    """Return the context of a call.

    Raises:
        V5Error: It has no client id.
    """
    client_id = call.text(b"x-mq-client-id")
    if not client_id.strip():
        raise V5Error(v2.CLIENT_ID_REQUIRED, "client id cannot be empty")
    if len(client_id) > CLIENT_ID_CHARS_MAX:
        raise V5Error(v2.BAD_REQUEST, f"a client id has at most {CLIENT_ID_CHARS_MAX} characters")
    return CallContext(
        client_id,
        call.address,
        _language(call.text(b"x-mq-language")),
        call.text(b"x-mq-client-version"),
        _signature(call.text(b"authorization"), call.text(b"x-mq-date-time")),
        call.deadline_s,
    )


def _language(name: str) -> str:
    """Return the language as requests of remoting clients name it."""
    name = {"GOLANG": "GO", "DOT_NET": "DOTNET"}.get(name.upper(), name.upper())
    return name if name in LANGUAGES else "OTHER"


def _signature(text: str, signed: str) -> Signature | None:
    """Return the signature in an authorization field; one that is malformed signs nothing."""
    if not text:
        return None
    scheme, _, rest = text.partition(" ")
    pairs = dict(pair.strip().partition("=")[::2] for pair in rest.split(","))
    # Apache has `KEY/region/service` in the credential; the key comes first
    access_key = pairs.get("Credential", "").partition("/")[0]
    digits = pairs.get("Signature", "") if scheme == SCHEME else ""
    return Signature(access_key, digits, signed)
