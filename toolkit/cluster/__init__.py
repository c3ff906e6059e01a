"""The state of a cluster on its hosts: probe, facts, layout, containers, keys, ports, ownership."""
