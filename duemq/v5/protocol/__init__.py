"""Messages of Apache RocketMQ's gRPC protocol, version 2.

The `.proto` files are Apache's (apache/rocketmq-apis, Apache License 2.0). `generate.sh` makes
`descriptors.binpb` and the stubs of them; `loading` builds the classes in a pool of its own, so a
program may also use a RocketMQ client that has the same names in protobuf's default pool.
"""
