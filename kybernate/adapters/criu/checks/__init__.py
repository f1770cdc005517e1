"""What is looked up of a tree before a dump, and what can't be dumped."""
