"""Failing programs: small Keras trainings that go wrong for one known reason, and what is told about them."""
