"""HTTP: API under /api/v1, health and metrics, served in a thread of its own."""
