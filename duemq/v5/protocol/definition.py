"""Classes of `definition.proto`, declared in the stub."""

from duemq.v5.protocol.loading import names_of

globals().update(names_of("apache/rocketmq/v2/definition.proto"))
