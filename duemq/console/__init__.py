"""Console: web pages for operators, on the port and in the thread of the HTTP API."""
