"""Diagnosis of jobs that hang or have failed, and explanations of messages."""
