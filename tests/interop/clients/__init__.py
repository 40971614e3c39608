"""Programs built on the clients that people use, and the Python side that drives them."""
