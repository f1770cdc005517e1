"""What every kind of object is carried out with: queue, workers, what is watched and written."""
