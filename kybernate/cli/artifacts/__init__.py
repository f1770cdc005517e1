"""`kybernate artifacts`: artifacts where they lie."""
