"""Leftovers on hosts, and the plan that removes them."""
