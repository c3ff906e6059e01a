"""Container images: build, content digest, transfer to the hosts."""
