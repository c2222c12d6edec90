"""What is measured inside the training graph."""
