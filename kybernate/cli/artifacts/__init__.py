"""`kybernate artifacts`: saved states where they lie."""
