"""hosts.yaml: from text to a validated Inventory, all problems at once."""
