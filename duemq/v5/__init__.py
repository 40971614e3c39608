"""gRPC service for RocketMQ 5 clients (MessagingService), backed by the broker's processors."""
