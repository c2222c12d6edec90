"""What the server remembers. One owner for writing, a pool for reading; SQL is written by hand."""
