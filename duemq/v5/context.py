"""Client id, address and credentials of a v5 call, from its gRPC metadata.

    authorization: MQv2-HMAC-SHA1 Credential=KEY, SignedHeaders=x-mq-date-time, Signature=HEX

As in Apache's proxy, the signature is the HMAC-SHA1 of the field x-mq-date-time alone. An
eavesdropper can therefore replay it for other calls: use TLS.

Source: ContextInitPipeline, DefaultAuthenticationContextBuilder, AclSigner
"""

from __future__ import annotations

import asyncio
import hmac
from dataclasses import dataclass
from typing import Final

from duemq.auth.signature import ACCESS_KEY_CHARACTERS_MAX
from duemq.net.http2.grpc_call import GrpcCall
from duemq.v5.protocol import definition as v2
from duemq.v5.status import V5Error

SCHEME: Final = "MQv2-HMAC-SHA1"
CLIENT_ID_CHARS_MAX: Final = 255
TEXT_CHARS_MAX: Final = 64  # of a version, a time and a signature, which renewals keep for hours
LANGUAGES: Final = frozenset(
    {
        "JAVA",
        "CPP",
        "DOTNET",
        "PYTHON",
        "DELPHI",
        "ERLANG",
        "RUBY",
        "OTHER",
        "HTTP",
        "GO",
        "PHP",
        "OMS",
        "RUST",
        "NODE_JS",
    }
)
"""Names of LanguageCode in remoting headers."""


@dataclass(frozen=True, slots=True)
class Signature:
    """Credentials of a call.

    Attributes:
        access_key: Name of the account.
        digits: Signature, in hexadecimal digits.
        signed_text: Text that is signed.
    """

    access_key: str
    digits: str
    signed_text: str

    def matches(self, secret: str) -> bool:
        """Return whether the signature was made with a secret."""
        expected = hmac.digest(secret.encode(), self.signed_text.encode("utf-8", "replace"), "sha1")
        return hmac.compare_digest(expected.hex().encode(), self.digits.lower().encode())


@dataclass(frozen=True, slots=True)
class CallContext:
    """Client and deadline of a call.

    Attributes:
        signature: Credentials; None: the call has none.
        deadline_s: Deadline of the client, in seconds of the event loop's clock; None: no deadline.
    """

    client_id: str
    address: tuple[str, int]
    language: str
    version: str
    signature: Signature | None
    deadline_s: float | None

    @property
    def access_key(self) -> str:
        """Name of the account; empty: no credentials."""
        return "" if self.signature is None else self.signature.access_key

    def remaining_ms(self) -> int | None:
        """Return the time until the deadline, in ms; None if there is no deadline."""
        if self.deadline_s is None:
            return None
        return int((self.deadline_s - asyncio.get_running_loop().time()) * 1_000)

    def is_late(self) -> bool:
        """Return whether the deadline has passed: the client does not receive a response."""
        remaining_ms = self.remaining_ms()
        return remaining_ms is not None and remaining_ms <= 0


def context_of(call: GrpcCall) -> CallContext:
    """Return the context of a call.

    Raises:
        V5Error: The client id is missing or too long.
    """
    client_id = call.text(b"x-mq-client-id")
    if not client_id.strip():
        raise V5Error(v2.CLIENT_ID_REQUIRED, "client id cannot be empty")
    if len(client_id) > CLIENT_ID_CHARS_MAX:
        raise V5Error(
            v2.BAD_REQUEST, f"a client id can have at most {CLIENT_ID_CHARS_MAX} characters"
        )
    return CallContext(
        client_id,
        call.address,
        _language(call.text(b"x-mq-language")),
        call.text(b"x-mq-client-version")[:TEXT_CHARS_MAX],
        _signature(call.text(b"authorization"), call.text(b"x-mq-date-time")),
        call.deadline_s,
    )


def _language(name: str) -> str:
    """Return the LanguageCode name of a v5 language."""
    name = {"GOLANG": "GO", "DOT_NET": "DOTNET"}.get(name.upper(), name.upper())
    return name if name in LANGUAGES else "OTHER"


def _signature(text: str, signed_text: str) -> Signature | None:
    """Parse an authorization field.

    A malformed field, or one with a long text, gives a signature that no secret matches.
    """
    if not text:
        return None
    scheme, _, rest = text.partition(" ")
    pairs = dict(pair.strip().partition("=")[::2] for pair in rest.split(","))
    # the credential can be `KEY/region/service`
    access_key = pairs.get("Credential", "").partition("/")[0]
    digits = pairs.get("Signature", "") if scheme == SCHEME else ""
    if (
        len(access_key) > ACCESS_KEY_CHARACTERS_MAX
        or max(len(digits), len(signed_text)) > TEXT_CHARS_MAX
    ):
        return Signature("", "", "")
    return Signature(access_key, digits, signed_text)
