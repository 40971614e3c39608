"""Requests of v5 calls to the processors of this broker, as remoting clients would send them.

    call --signature of its metadata--> client --> request, signed for the account --> processor

A request that needs credentials is signed with the secret of the account whose signature the call
has, so authentication and permissions are those of remoting clients, and so are their audit lines.

Source: LocalMessageService of Apache's proxy, which calls the broker's processors in its process
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Protocol

from delivery.plugin import Peer, Request, Response
from duemq.auth.signature import ACCESS_KEY, Credentials
from duemq.net.codes import RequestCode, ResponseCode
from duemq.net.dispatcher import AccessCheck, Dispatcher
from duemq.registry.versions import NAMES
from duemq.send.decoded_sends import DecodedSends
from duemq.v5.context import CallContext
from duemq.v5.protocol import definition as v2
from duemq.v5.status import V5Error, code_of
from message_store.errors import RequestError

VERSION: Final = NAMES.index("v5_3_3")


class Secrets(AccessCheck, Protocol):
    """Checks requests, and names the secrets that sign them."""

    def authenticate(self, request: Request) -> None:
        """Check the signature of a request, not its permissions.

        Raises:
            RequestError: The account is unknown, or the signature is not its own.
        """
        ...

    def secret(self, access_key: str) -> str | None:
        """Return the secret of an account, None if it may do nothing."""
        ...


@dataclass(slots=True)
class BrokerRequests:
    """Makes requests for calls.

    Attributes:
        access: Checks signed requests; None: there are no accounts.
    """

    dispatcher: Dispatcher
    sends: DecodedSends
    access: Secrets | None

    def verify(self, context: CallContext, peer: Peer) -> None:
        """Check the signature of a call, before anything is kept about its client.

        Raises:
            V5Error: It is not that of its account, or it is missing.
        """
        if self.access is None or self._secret(context) is not None:
            return
        request = self._request(context, peer, RequestCode.HEART_BEAT, {}, b"")
        try:
            self.access.authenticate(request)
        except RequestError as error:
            raise V5Error(v2.UNAUTHORIZED, error.remark) from error

    async def ask(
        self,
        context: CallContext,
        peer: Peer | None,
        code: RequestCode,
        fields: dict[str, str],
        body: bytes = b"",
    ) -> Response:
        """Return the response of the processor of this code.

        Raises:
            V5Error: The account may not make the request.
        """
        request = self._request(context, peer, code, fields, body)
        self._check(request)
        found = self.dispatcher.begin(request)
        response = found if isinstance(found, Response) else await found
        if response is None:
            raise V5Error(v2.INTERNAL_SERVER_ERROR, f"the broker does not answer request {code}")
        return response

    async def must(
        self,
        context: CallContext,
        peer: Peer | None,
        code: RequestCode,
        fields: dict[str, str],
        body: bytes = b"",
    ) -> Response:
        """Return the response of a request that has succeeded.

        Raises:
            V5Error: It was refused.
        """
        response = await self.ask(context, peer, code, fields, body)
        if response.code != ResponseCode.SUCCESS:
            raise V5Error(code_of(response), response.remark or f"response code {response.code}")
        return response

    async def send(
        self, context: CallContext, peer: Peer | None, fields: dict[str, str], body: bytes
    ) -> Response:
        """Append a message.

        Raises:
            V5Error: The account may not send it.
        """
        request = self._request(context, peer, RequestCode.SEND_MESSAGE, fields, body)
        self._check(request)
        return await self.sends.send(request)

    def check(self, context: CallContext, code: RequestCode, fields: dict[str, str]) -> None:
        """Check a request that no processor of a broker answers.

        Raises:
            V5Error: The account may not make it.
        """
        if self.access is not None:
            self._check(self._request(context, None, code, fields, b""))

    def _request(
        self,
        context: CallContext,
        peer: Peer | None,
        code: RequestCode,
        fields: dict[str, str],
        body: bytes,
    ) -> Request:
        request = Request(code, fields, body, language=context.language, version=VERSION, peer=peer)
        if self.access is None or context.signature is None:
            return request
        secret = self._secret(context)
        if secret is None:  # not signed: the access check refuses it, and logs that
            return replace(request, fields=fields | {ACCESS_KEY: context.access_key})
        return Credentials(context.access_key, secret).sign(request)

    def _secret(self, context: CallContext) -> str | None:
        """Return the secret that has signed a call; None: none has."""
        if self.access is None or (signature := context.signature) is None:
            return None
        secret = self.access.secret(signature.access_key)
        return secret if secret is not None and signature.is_of(secret) else None

    def _check(self, request: Request) -> None:
        if self.access is None:
            return
        try:
            self.access(request)
        except RequestError as error:
            raise V5Error(v2.UNAUTHORIZED, error.remark) from error
