"""The parts of the day: each asks the questions of the same name, and yields the answers."""
