"""The life of a seat: its states, what people ask of it, and what it may take. Pure."""
