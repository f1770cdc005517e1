"""What a seat is made of: values that belong together, each changed by its own module alone."""
