"""hosts.yaml to an inventory, all problems at once."""
