"""The image: built here, known by its identity, sent to hosts."""
