"""gRPC server on HTTP/2, independent of any service definition."""
