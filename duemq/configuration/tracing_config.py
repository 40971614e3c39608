"""Configuration section of traces."""

from __future__ import annotations

from dataclasses import dataclass

from duemq_common.config import option
from duemq_common.errors import ConfigError

SCHEMES = ("http://", "https://")


@dataclass(frozen=True, slots=True, kw_only=True)
class TracingConfig:
    """OpenTelemetry traces of messages."""

    endpoint: str = option(
        "",
        "otelTracesEndpoint",
        "URL of an OTLP/HTTP receiver of traces, as in http://127.0.0.1:4318/v1/traces; empty: "
        "none. The environment OTEL_EXPORTER_OTLP_* sets headers, certificates and timeouts.",
        unit="URL",
        own=True,
    )
    sample_ratio: float = option(
        1.0,
        "otelSampleRatio",
        "Share of the messages that are traced, of those that their producers sample.",
        minimum=0,
        maximum=1,
        own=True,
    )
    messages_max: int = option(
        1_000,
        "otelMessagesMax",
        "Maximum events of traced messages in a second; further ones are not recorded.",
        unit="events",
        minimum=1,
        own=True,
    )
    queue_max: int = option(
        8_192,
        "otelQueueMax",
        "Maximum spans in memory before their export; further ones are dropped.",
        unit="spans",
        minimum=512,
        maximum=1_000_000,
        own=True,
    )

    def __post_init__(self) -> None:
        if self.endpoint and not self.endpoint.startswith(SCHEMES):
            raise ConfigError(
                "otelTracesEndpoint", self.endpoint, "must begin with http:// or https://"
            )
