"""Benchmarks of DueMQ and Apache RocketMQ; see `python -m benchmarks.run --help`."""
