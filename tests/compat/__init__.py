"""Real trainings in each version of Keras that is supported: `scripts/compat` makes the environments."""
