"""The registry with 100,000 artifacts, rebuilt, asked, and killed under load."""
