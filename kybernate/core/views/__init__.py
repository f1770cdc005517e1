"""What was decided, for people: dumps, replays, explanations and utilisation. Pure."""
