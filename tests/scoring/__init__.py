"""Scoring: how well the detectors find and name what is labelled, in real logs and in small programs."""
