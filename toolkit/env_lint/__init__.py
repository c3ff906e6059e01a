"""Environment variables of communication libraries that do not do what they are set for."""
