"""Detectors: pure folds over column batches, one file for each family of patterns.

A detector is a struct with `feed(batch) -> list[Finding]`. It reads no clock and does no I/O; its whole state
serialises; how the rows were split into batches changes nothing. What a user is told about a finding is
decided elsewhere (`book`, `diagnose`).
"""
