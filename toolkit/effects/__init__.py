"""The world, thinly: processes, ssh, the local engine. Sees only ``errors`` and ``core``."""
