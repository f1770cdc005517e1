"""The web page of a proxy or a box: what it shows, as one JSON shape, and the stream that keeps it.

`shape` is a pure function of seats and what `history` and `rates` remember; `stream` sends it and
its changes; `door` answers the page's paths. The page itself is below `assets`.
"""
