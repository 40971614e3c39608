"""Protobuf messages of Apache RocketMQ's gRPC protocol, version 2.

The `.proto` files come from apache/rocketmq-apis (Apache License 2.0). `generate.sh` generates
`descriptors.binpb` and the stubs. `loading` builds the classes in a separate descriptor pool, so
that a program can also import a RocketMQ client that registers the same names in the default pool.
"""
