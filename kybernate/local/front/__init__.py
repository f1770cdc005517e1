"""One box's HTTP side: who may ask, which path is answered how, and Ollama's way of asking.

A request that a model is to answer goes the proxy's way: read, admitted, passed on.
"""
