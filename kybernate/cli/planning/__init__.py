"""Commands that reckon: what was decided, what would be, and what it takes."""
