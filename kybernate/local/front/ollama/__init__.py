"""Ollama's way of asking: its requests as OpenAI's, and the answers as Ollama gives them."""
