"""What watches remember of objects, and what those who watch them read."""
