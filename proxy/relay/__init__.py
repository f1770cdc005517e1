"""The life of one request: read, admitted, passed on to a seat, and its answer back."""
