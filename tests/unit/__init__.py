"""Tests that need no Docker, no network and no time."""
