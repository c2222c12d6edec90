"""Robustness: labelled traces, changed in ways that change nothing about the run itself."""
