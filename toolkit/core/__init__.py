"""Small pure values that every layer shares."""
