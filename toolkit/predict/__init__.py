"""How long a job would take on other networks and more hosts."""
