"""Client programs that use released RocketMQ clients."""
