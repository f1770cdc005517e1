"""Controllers on a real API server, beside stand-ins of what they work with."""
