"""Signatures of requests: HMAC-SHA1 over the header values and the body.

The client adds `AccessKey` to the header fields and signs the values of all fields, sorted by name,
followed by the body. The signature is Base64 text in the field `Signature`.

Source: acl/common/AclClientRPCHook, AclUtils.combineRequestContent and AclSigner of Apache 4.9.7
and 5.3.3; auth/authentication/builder/DefaultAuthenticationContextBuilder.
"""

from __future__ import annotations

import base64
import hmac
from collections.abc import Mapping
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from duemq_common.request import Request

ACCESS_KEY: Final = "AccessKey"
ACCESS_KEY_CHARACTERS_MAX: Final = 255
SIGNATURE: Final = "Signature"
CREDENTIALS: Final = frozenset({ACCESS_KEY, SIGNATURE, "SecurityToken"})
"""Header fields that identify the account of a request."""
UNIQUE_KEY_QUERY: Final = "_UNIQUE_KEY_QUERY"
VERSION_4_9_3: Final = 399
"""Ordinal of V4_9_3 in MQVersion; clients up to it do not sign `_UNIQUE_KEY_QUERY`."""


class Credentials(Struct, frozen=True):
    """Account that signs requests."""

    access_key: str
    secret: str

    def __repr__(self) -> str:
        return f"Credentials({self.access_key!r})"  # may be logged, so without the secret

    def sign(self, request: Request) -> Request:
        """Return the request with access key and signature."""
        fields = self.fields(request.fields, request.body, request.version)
        return replace(request, fields=fields)

    def fields(self, fields: Mapping[str, str], body: bytes, version: int) -> dict[str, str]:
        """Return header fields with access key and signature."""
        signed = {name: text for name, text in fields.items() if name != SIGNATURE}
        signed[ACCESS_KEY] = self.access_key
        signed[SIGNATURE] = sign(signed_bytes(signed, body, version), self.secret)
        return signed


def account_of(request: Request) -> str:
    """Return the account of a checked request, to be kept; empty if it has none.

    Nothing verifies the field without accounts, or from addresses that need no signature: a longer
    text is not an account.
    """
    access_key = request.fields.get(ACCESS_KEY, "")
    return access_key if len(access_key) <= ACCESS_KEY_CHARACTERS_MAX else ""


def signed_bytes(fields: Mapping[str, str], body: bytes, version: int) -> bytes:
    """Return the bytes that a client of this version signs."""
    excluded = {SIGNATURE} | ({UNIQUE_KEY_QUERY} if version <= VERSION_4_9_3 else set())
    names = sorted(fields)
    if not "".join(names).isascii():
        names.sort(key=_java_order)
    values = [fields[name] for name in names if name not in excluded]
    return "".join(values).encode("utf-8", "replace") + body


def sign(content: bytes, secret: str) -> str:
    """Return the signature of `content` as Base64 text."""
    return base64.b64encode(
        hmac.digest(secret.encode("utf-8", "replace"), content, "sha1")
    ).decode()


def is_signed(fields: Mapping[str, str], body: bytes, version: int, secret: str) -> bool:
    """Return whether the request has a valid signature; compared in constant time."""
    signature = fields.get(SIGNATURE)
    if signature is None:
        return False
    expected = sign(signed_bytes(fields, body, version), secret)
    return hmac.compare_digest(expected.encode(), signature.encode("utf-8", "replace"))


def _java_order(name: str) -> bytes:
    """Return the sort key of Java's string order, UTF-16 code units."""
    return name.encode("utf-16-be", "surrogatepass")
