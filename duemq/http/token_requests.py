"""Endpoints that issue and revoke access tokens."""

from __future__ import annotations

import msgspec

from duemq.http.endpoints import Call, Endpoint, invalid
from duemq.http.problems import Problem
from duemq.http.tokens import LIFETIME_S, Tokens, bearer_of


class NewToken(msgspec.Struct, kw_only=True):
    """Token for the header `Authorization: Bearer`.

    Attributes:
        expires_in: Seconds until the token ends.
    """

    access_token: str
    token_type: str = "Bearer"
    expires_in: int = LIFETIME_S


class RevokedTokens(msgspec.Struct):
    """Number of tokens that were ended."""

    revoked: int


class TokenRequests:
    """Handlers of requests about tokens."""

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens

    async def create_token(self, call: Call) -> NewToken:
        """Issue a token for the account of HTTP Basic."""
        if call.credentials is None:
            raise invalid("the request has no account, so it needs no token")
        if bearer_of(call.headers):
            title = "A token cannot be exchanged for another one"
            raise Problem(403, "token", title, "give the access key and the secret (HTTP Basic)")
        return NewToken(access_token=self._tokens.issue(call.credentials))

    async def revoke_tokens(self, call: Call) -> RevokedTokens:
        """End the token of the request; with HTTP Basic, all tokens of the account."""
        token = bearer_of(call.headers)
        if token:
            return RevokedTokens(self._tokens.revoke(token))
        return RevokedTokens(self._tokens.revoke_all(call.account) if call.account else 0)

    def endpoints(self) -> tuple[Endpoint, ...]:
        """Return the endpoints."""
        return (
            Endpoint(
                method="POST",
                path="/tokens",
                handler=self.create_token,
                summary="Issue an access token for the account of HTTP Basic.",
                tag="tokens",
                result=NewToken,
                status=201,
            ),
            Endpoint(
                method="DELETE",
                path="/tokens",
                handler=self.revoke_tokens,
                summary="End the token of the request; with HTTP Basic, all of the account.",
                tag="tokens",
                result=RevokedTokens,
            ),
        )
