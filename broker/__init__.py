"""The process: remoting, name server, plugin host, command line, metrics."""
