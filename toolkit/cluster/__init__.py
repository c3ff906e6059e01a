"""A cluster as its hosts show it: probe, facts, layout, containers, keys, ports, ownership."""
