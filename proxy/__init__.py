"""The smart proxy: routes OpenAI requests by model and holds them while a seat wakes."""
