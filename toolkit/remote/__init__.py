"""Hosts by SSH, containers on them, and the engine of this machine."""
