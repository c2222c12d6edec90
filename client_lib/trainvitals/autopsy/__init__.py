"""The autopsy of a failing step: replay it once, eagerly, and name what went wrong first."""
