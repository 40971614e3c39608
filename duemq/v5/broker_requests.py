"""In-process requests from v5 calls to the broker's processors.

    call --verify the signature in its metadata--> request, signed for the account --> processor

If the broker has accounts, each request is signed with the secret of the calling account.
Authentication, permissions and audit lines are therefore the same as for remoting clients.

Source: LocalMessageService of Apache's proxy, which calls the processors of a broker in its process
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, Protocol

from msgspec.structs import replace

from duemq.auth.signature import ACCESS_KEY, Credentials
from duemq.net.dispatcher import AccessCheck, Dispatcher
from duemq.registry.versions import NAMES
from duemq.v5.context import CallContext
from duemq.v5.protocol import definition as v2
from duemq.v5.status import V5Error, successful
from duemq_common.codes import RequestCode
from duemq_common.errors import RequestError
from duemq_common.request import Peer, Request, Response

VERSION: Final = NAMES.index("v5_3_3")


class Authenticator(AccessCheck, Protocol):
    """Access check that also authenticates requests and returns the secrets of accounts."""

    def authenticate(self, request: Request) -> None:
        """Check the signature of a request, but not the permissions of its account.

        Raises:
            RequestError: The account is unknown, or the signature is invalid.
        """
        ...

    def secret(self, access_key: str) -> str | None:
        """Return the secret of an account; None if it is unknown or disabled."""
        ...


@dataclass(slots=True)
class BrokerRequests:
    """In-process client of the broker's processors.

    Attributes:
        access: Access check of signed requests; None: the broker has no accounts.
    """

    dispatcher: Dispatcher
    access: Authenticator | None

    def verify(self, context: CallContext, peer: Peer) -> None:
        """Check the signature of a call, before its client is added to any table.

        Raises:
            V5Error: The signature is missing or invalid.
        """
        if self.access is None or self._secret(context) is not None:
            return
        request = self._request(context, peer, RequestCode.HEART_BEAT, {}, b"")
        try:
            self.access.authenticate(request)
        except RequestError as error:
            raise V5Error(v2.UNAUTHORIZED, error.remark) from error

    async def call(
        self,
        context: CallContext,
        peer: Peer,
        code: RequestCode,
        fields: dict[str, str],
        body: bytes = b"",
    ) -> Response:
        """Send a request to its processor and return the response, whatever its code.

        Raises:
            V5Error: The account has no permission.
        """
        result = self.dispatcher.begin(self.request(context, peer, code, fields, body))
        response = result if isinstance(result, Response) else await result
        if response is None:
            raise V5Error(v2.INTERNAL_SERVER_ERROR, f"request {code} got no response")
        return response

    async def call_or_raise(
        self,
        context: CallContext,
        peer: Peer,
        code: RequestCode,
        fields: dict[str, str],
        body: bytes = b"",
    ) -> Response:
        """Send a request to its processor and return its successful response.

        Raises:
            V5Error: The account has no permission, or the response is an error.
        """
        return successful(await self.call(context, peer, code, fields, body))

    def request(
        self,
        context: CallContext,
        peer: Peer,
        code: RequestCode,
        fields: dict[str, str],
        body: bytes = b"",
    ) -> Request:
        """Return a request whose permission is checked.

        Raises:
            V5Error: The account has no permission.
        """
        request = self._request(context, peer, code, fields, body)
        self._check(request)
        return request

    def check(
        self,
        context: CallContext,
        peer: Peer,
        code: RequestCode,
        fields: dict[str, str],
        body: bytes = b"",
    ) -> None:
        """Check the permission for a request that is not sent to a processor.

        Raises:
            V5Error: The account has no permission.
        """
        if self.access is not None:
            self._check(self._request(context, peer, code, fields, body))

    @contextmanager
    def permission_first(
        self, context: CallContext, peer: Peer, code: RequestCode, fields: dict[str, str]
    ) -> Iterator[None]:
        """Check the permission for a request before an error of the block is reported.

        An account without it must not learn which topics exist, and of which type they are.

        Raises:
            V5Error: The block raised an error; UNAUTHORIZED if the account has no permission.
        """
        try:
            yield
        except V5Error:
            self.check(context, peer, code, fields)
            raise

    def _request(
        self,
        context: CallContext,
        peer: Peer,
        code: RequestCode,
        fields: dict[str, str],
        body: bytes,
    ) -> Request:
        request = Request(code, fields, body, language=context.language, version=VERSION, peer=peer)
        if self.access is None or context.signature is None:
            return request
        secret = self._secret(context)
        if secret is None:  # the access check refuses the unsigned request and audits the refusal
            return replace(request, fields=fields | {ACCESS_KEY: context.access_key})
        return Credentials(context.access_key, secret).sign(request)

    def _secret(self, context: CallContext) -> str | None:
        """Return the secret with which a call is signed; None if its signature is invalid."""
        if self.access is None or (signature := context.signature) is None:
            return None
        secret = self.access.secret(signature.access_key)
        return secret if secret is not None and signature.matches(secret) else None

    def _check(self, request: Request) -> None:
        if self.access is None:
            return
        try:
            self.access(request)
        except RequestError as error:
            raise V5Error(v2.UNAUTHORIZED, error.remark) from error
