"""The chain by which bytes go from here to a host, and from host to host."""
