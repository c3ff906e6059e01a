"""A hosts file from a few answers and from facts about the hosts, and the SSH keys of the hosts."""
