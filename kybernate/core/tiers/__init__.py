"""In which tier a state lies, what that costs, and how it is told. Pure."""
