"""Effective settings of v5 clients.

Source: GrpcClientSettingsManager
"""

from __future__ import annotations

from typing import Final

from duemq.registry.groups import GroupConfig
from duemq.v5.config import V5Config
from duemq.v5.protocol import definition as v2

SEND_ATTEMPTS: Final = 3
SEND_BACKOFF_MS: Final = (10, 1_000, 2.0)  # first, longest, factor
RECEIVE_BATCH: Final = 32
POLL_MS: Final = 20_000
RETRY_S: Final = (
    1,
    5,
    10,
    30,
    60,
    120,
    180,
    240,
    300,
    360,
    420,
    480,
    540,
    600,
    1_200,
    1_800,
    3_600,
    7_200,
)
EXPONENTIAL_MS: Final = (5_000, 7_200_000, 2.0)
STEPS_MAX: Final = 128  # per custom retry policy of a group


def kept_settings(settings: v2.Settings) -> v2.Settings:
    """Return the part of a client's settings that its later calls need.

    The client table charges the topics and subscriptions to the memory budget. The rest, fields of
    other versions included, may be as long as a message, and would be kept for each client.
    """
    kept = v2.Settings(client_type=settings.client_type)
    if settings.HasField("request_timeout"):
        timeout = settings.request_timeout
        kept.request_timeout.seconds, kept.request_timeout.nanos = timeout.seconds, timeout.nanos
    if settings.HasField("publishing"):
        kept.publishing.SetInParent()
        for topic in settings.publishing.topics:
            kept.publishing.topics.add(name=topic.name)
    elif settings.HasField("subscription"):
        kept.subscription.group.name = settings.subscription.group.name
        for each in settings.subscription.subscriptions:
            expression = v2.FilterExpression(
                type=each.expression.type, expression=each.expression.expression
            )
            kept.subscription.subscriptions.add(
                topic=v2.Resource(name=each.topic.name), expression=expression
            )
    return kept


def effective_settings(
    settings: v2.Settings, group: GroupConfig | None, config: V5Config
) -> v2.Settings:
    """Return a client's settings with the values that the broker sets.

    Args:
        group: Consumer group of the client; None: a producer, or an unknown group.
    """
    effective = v2.Settings()
    effective.CopyFrom(settings)
    effective.metric.CopyFrom(v2.Metric(on=False))
    if effective.HasField("publishing"):
        effective.publishing.validate_message_type = config.type_check
        effective.publishing.max_body_size = config.body_bytes_max
        effective.backoff_policy.max_attempts = SEND_ATTEMPTS
        _set_exponential(effective.backoff_policy, *SEND_BACKOFF_MS)
    elif group is not None:
        subscription = effective.subscription
        subscription.fifo = group.orderly
        subscription.receive_batch_size = RECEIVE_BATCH
        subscription.long_polling_timeout.FromMilliseconds(POLL_MS)
        effective.backoff_policy.max_attempts = group.retry_times_max + 1
        _set_retries(effective.backoff_policy, group)
    return effective


def _set_retries(policy: v2.RetryPolicy, group: GroupConfig) -> None:
    if group.retry_policy.get("type") == "EXPONENTIAL":
        given = group.retry_policy.get("exponentialRetryPolicy")
        own = given if isinstance(given, dict) else {}
        first, longest, factor = EXPONENTIAL_MS
        _set_exponential(
            policy,
            _number(own.get("initial"), first),
            _number(own.get("max"), longest),
            _number(own.get("multiplier"), int(factor)),
        )
        return
    given = group.retry_policy.get("customizedRetryPolicy")
    steps = given.get("next") if isinstance(given, dict) else None
    times = [_number(each, 0) for each in steps[:STEPS_MAX]] if isinstance(steps, list) else []
    policy.customized_backoff.SetInParent()
    for each in times or [each * 1_000 for each in RETRY_S]:
        policy.customized_backoff.next.add().FromMilliseconds(each)


def _set_exponential(policy: v2.RetryPolicy, first: int, longest: int, factor: float) -> None:
    backoff = policy.exponential_backoff
    backoff.initial.FromMilliseconds(first)
    backoff.max.FromMilliseconds(longest)
    backoff.multiplier = factor


def _number(value: object, default: int) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 40:
        return value
    return default
