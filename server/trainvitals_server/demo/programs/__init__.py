"""The trainings of the demo: real Keras programs, each readable as an example.

A program has a NAME and `train(reporter, fixed)`; `reporter` is the only line a user would add. With `fixed`
it does what the incident of the broken version tells to do.
"""
