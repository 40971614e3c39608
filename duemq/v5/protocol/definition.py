"""Classes of `definition.proto`; its stub names them."""

from duemq.v5.protocol.loading import names_of

globals().update(names_of("apache/rocketmq/v2/definition.proto"))
