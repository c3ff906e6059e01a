"""A hosts file from a few answers and what hosts say."""
