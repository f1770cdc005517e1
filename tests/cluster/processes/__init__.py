"""The supervisor and the processes that it runs."""
