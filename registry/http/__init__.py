"""The registry's API: who calls, what can be asked, and how it is served."""
