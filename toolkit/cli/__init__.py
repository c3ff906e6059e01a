"""The command line: one file per verb; each loads, plans, shows or executes, and reports."""
