"""RocketMQ 5 clients: the calls of MessagingService as requests to the broker's processors."""
