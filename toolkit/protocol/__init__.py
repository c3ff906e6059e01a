"""Formats of what hosts, containers and ranks send, and the decoders that read them.

Standard library only, because hosts can use these modules too.
"""
