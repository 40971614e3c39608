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

ACCESS_KEY: Final = "AccessKey"
SIGNATURE: Final = "Signature"
UNIQUE_KEY_QUERY: Final = "_UNIQUE_KEY_QUERY"
VERSION_4_9_3: Final = 399
"""Ordinal of V4_9_3 in MQVersion; clients up to it do not sign `_UNIQUE_KEY_QUERY`."""


def signed_bytes(fields: Mapping[str, str], body: bytes, version: int) -> bytes:
    """Return the bytes that a client of this version signs."""
    excluded = {SIGNATURE} | ({UNIQUE_KEY_QUERY} if version <= VERSION_4_9_3 else set())
    values = (fields[name] for name in sorted(fields, key=_java_order) if name not in excluded)
    return "".join(values).encode("utf-8", "replace") + body


def sign(content: bytes, secret: str) -> str:
    """Return the signature of these bytes, as Base64 text."""
    return base64.b64encode(hmac.digest(secret.encode(), content, "sha1")).decode()


def is_signed(fields: Mapping[str, str], body: bytes, version: int, secret: str) -> bool:
    """Return whether the request carries the signature that this secret makes.

    The comparison takes the same time for every wrong signature.
    """
    given = fields.get(SIGNATURE)
    if given is None:
        return False
    expected = sign(signed_bytes(fields, body, version), secret)
    return hmac.compare_digest(expected.encode(), given.encode("utf-8", "replace"))


def _java_order(name: str) -> bytes:
    """Java compares strings by UTF-16 code units."""
    return name.encode("utf-16-be", "surrogatepass")
