"""Options of a port that the broker and the name server share."""

from __future__ import annotations

from functools import partial

from duemq_common.config import option

# Options of the broker and of the name server.
bind_address_option = partial(
    option,
    "",
    "bindAddress",
    "Address to listen on; empty: every address with accounts (authenticationEnabled, aclEnable), "
    "127.0.0.1 without. 0.0.0.0 without accounts opens the port to all users of other machines.",
    unit="IP address",
)
channel_idle_option = partial(
    option,
    120,
    "serverChannelMaxIdleTimeSeconds",
    "Time without traffic after which a connection is closed.",
    minimum=1,
)
socket_backlog_option = partial(
    option,
    1_024,
    "serverSocketBacklog",
    "Maximum connections that are not accepted yet.",
    unit="connections",
    minimum=1,
    maximum=65_535,
)
connections_max_option = partial(
    option,
    20_000,
    "connectionsMax",
    "Maximum open connections; further connections are closed at once. Also limited to half of "
    "the process's file descriptors (of a high limit to three quarters, or to 16,384 fewer).",
    minimum=1,
    own=True,
)
proxy_protocol_option = partial(
    option,
    "loopback",
    "proxyProtocolFrom",
    "Networks of proxies (HAProxy and others) whose PROXY protocol header, with the client's "
    "address, is trusted, separated by `;`, as in `10.0.0.0/8`; loopback is always trusted.",
    unit="networks",
    own=True,
)
log_format_option = partial(
    option,
    "text",
    "logFormat",
    "Form of the log on standard error; json: one object per line.",
    choices=("text", "json"),
    own=True,
)
busy_poll_option = partial(
    option,
    100,
    "busyPollMicros",
    "How long the event loop polls for the next request, after two turns with requests within "
    "this time, before it sleeps; 0: it sleeps at once, as always with one processor.",
    unit="us",
    minimum=0,
    maximum=1_000,
    own=True,
)
