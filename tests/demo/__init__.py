"""`make demo`: six models share four GPUs under a real trace's traffic, live, with a verdict."""
