"""Work that calls the kernels of a group like a broker, from which their types are recorded."""
