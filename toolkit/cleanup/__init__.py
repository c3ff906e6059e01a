"""Leftovers on hosts: what remains, and the plan that removes it."""
