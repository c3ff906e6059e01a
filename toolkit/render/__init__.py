"""Values as text for other programs: docker, compose, OpenSSH."""
