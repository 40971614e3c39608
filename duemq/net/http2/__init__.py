"""gRPC: calls on HTTP/2 connections. No service is known here."""
