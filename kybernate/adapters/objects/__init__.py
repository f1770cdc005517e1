"""Objects in a folder, in an object store, or in a tar archive."""
