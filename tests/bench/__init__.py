"""Benchmarks: `scripts/bench [NAME ...] [--quick] [--write]`. The suite only sees that each part runs."""
