"""models.yaml made of what somebody has: llama-swap's file, Ollama's models, what a box has at the
first run."""
