"""Memory of the process: the C library's heap and huge pages."""
