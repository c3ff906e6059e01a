"""Tests; a package so that all of them share the helpers at its top."""
